"""Train again from the trajectories of a finished run, with another objective or admission rule. See docs/replay.md.

    run directory ─► Recording ─► RecordedGroups, RecordedEngine ─► the real controller, buffer and trainer, in virtual
                                                                    time ─► a run directory of its own

Only generation is replaced. Groups arrive, and weights are loaded, when they were in the recorded run.
"""
