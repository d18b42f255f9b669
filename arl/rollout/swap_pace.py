"""Say how long engines keep a version before they load a newer one: `sync.every` and `sync.min_seconds`.

A load interrupts every open request, and under `engine.kv_policy: recompute` their caches are computed again. Fewer
loads leave more time to generate, with older weights. Loads are put off only while nobody waits for one.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class SwapPace:
    """Put off loads that come soon after the last one.

    Args:
        every: versions from one load to the next.
        min_seconds: of the clock, from the end of a load to the next one.
    """

    every: int = 1
    min_seconds: float = 0.0

    def is_early(self, versions: int, seconds_left: float) -> bool:
        """Return whether a load should be put off.

        Args:
            versions: by which the trainer is ahead of the engines.
            seconds_left: of `min_seconds`.
        """
        return versions < self.every or seconds_left > 0


AT_ONCE = SwapPace()  # every version, as soon as it is there
