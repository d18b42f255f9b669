"""Remember which published versions can be loaded, and from where. Torch-free."""

from collections.abc import Mapping

import numpy as np

from arl.config.recipe import Recipe
from arl.types import WeightUpdate


class PublishedVersions:
    """Remember the newest versions. Those that are known from the start lie in directories.

    >>> versions = PublishedVersions(2, {4: "model"})
    >>> versions.add(WeightUpdate(6, "v6"))
    >>> [versions.find(wanted) and versions.find(wanted).version for wanted in (4, 5, 6, 7)]
    [4, 6, 6, None]

    Args:
        kept: number of versions that are remembered.
        known: version -> directory of what is published already.
    """

    def __init__(self, kept: int, known: Mapping[int, str]) -> None:
        self._kept = kept
        self._updates: dict[int, WeightUpdate] = {}
        for version, path in known.items():
            self._updates[version] = WeightUpdate(version, path)

    def add(self, update: WeightUpdate) -> None:
        """Remember one more, and forget the oldest beyond `kept`."""
        self._updates[update.version] = update
        while len(self._updates) > self._kept:
            oldest = min(self._updates)
            del self._updates[oldest]

    def find(self, version: int) -> WeightUpdate | None:
        """Return `version` itself, or the next newer one; None: it is not published yet."""
        new_enough = [known for known in self._updates if known >= version]
        if not new_enough:
            return None
        return self._updates[min(new_enough)]


def kept_versions(recipe: Recipe, lags: np.ndarray | None) -> int:
    """Return how many published versions are kept at once: η + 2, for the reason that Publisher gives.

    Without a bound, Rollout.versions_ahead takes the place of η.

    Args:
        lags: (steps, P) int32, of the recipe, see arl.rollout.lag_table; then their largest takes the place of η.
            None: the recipe has no lag.
    """
    if recipe.mode == "collocated":
        return 2  # no step begins before the weights of its predecessor are loaded
    ahead = recipe.rollout.versions_ahead if lags is None else int(lags.max())
    return ahead + 2
