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
        self._updates = {version: WeightUpdate(version, path) for version, path in known.items()}

    def add(self, update: WeightUpdate) -> None:
        """Remember one more, and forget the oldest beyond `kept`."""
        self._updates[update.version] = update
        for version in sorted(self._updates)[: -self._kept]:
            del self._updates[version]

    def find(self, version: int) -> WeightUpdate | None:
        """Return `version` itself, or the next newer one; None: it is not published yet."""
        found = min((v for v in self._updates if v >= version), default=None)
        return None if found is None else self._updates[found]


def kept_versions(recipe: Recipe, lags: np.ndarray | None) -> int:
    """Return how many published versions are kept at once: η + 2, for the reason that Publisher gives.

    Args:
        lags: (steps, P) int32, of the recipe, see arl.rollout.lag_table; then their largest takes the place of η.
            None: staleness is bounded instead.
    """
    if recipe.mode == "collocated":
        return 2  # no step begins before the weights of its predecessor are loaded
    oldest = recipe.rollout.staleness if lags is None else int(lags.max())
    assert oldest is not None, "rollout.lag needs its lags, which are in the Plan"
    return oldest + 2
