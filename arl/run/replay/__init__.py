"""Train again from the trajectories of a finished run, under another objective or admission rule. See docs/replay.md.

    run directory ─► Recording ─► RecordedGroups, RecordedEngine ─► the real controller, buffer and trainer, in virtual
                                                                    time ─► a run directory of its own

Only generation is replaced: groups, swaps and the steps of a wall clock come when they came.
"""
