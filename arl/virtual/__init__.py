"""The virtual world: the real model really generates and trains, in one process; what it takes is virtual time.

    recipe (clock: virtual) ─► warm-up, on the wall clock ─► VirtualLoop: Run over EmbeddedEngine × replicas,
                                                             InProcessTrainer, InlineRewards

Each operation computes when it starts and takes effect when its cost (recipe section `virtual`) has passed. There
are no threads and no processes, so nothing is left to chance: two runs of one recipe are bit-identical.
"""
