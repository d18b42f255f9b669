"""Where published weights lie, as whoever asks for them knows it. Torch-free."""

from collections.abc import Mapping

import numpy as np

from arl.config.recipe import Recipe
from arl.types import WeightUpdate


class PublishedVersions:
    """The newest `kept` versions; those known from the start are in directories.

    >>> versions = PublishedVersions(2, {4: "model"})
    >>> versions.add(WeightUpdate(6, "v6"))
    >>> [versions.find(wanted) and versions.find(wanted).version for wanted in (4, 5, 6, 7)]
    [4, 6, 6, None]
    """

    def __init__(self, kept: int, known: Mapping[int, str]) -> None:
        self._kept, self._updates = kept, {version: WeightUpdate(version, path) for version, path in known.items()}

    def add(self, update: WeightUpdate) -> None:
        self._updates[update.version] = update
        for version in sorted(self._updates)[: -self._kept]:
            del self._updates[version]

    def find(self, version: int) -> WeightUpdate | None:
        """`version` itself, or the next newer one; None: not published yet."""
        found = min((v for v in self._updates if v >= version), default=None)
        return None if found is None else self._updates[found]


def kept_versions(recipe: Recipe, lags: np.ndarray | None) -> int:
    """Published versions at once: see Publisher; `lags`, of the recipe, see arl.rollout.exact_lag."""
    if recipe.mode == "collocated":
        return 2  # no step begins before its predecessor's weights are loaded
    oldest = recipe.rollout.staleness if lags is None else int(lags.max())
    assert oldest is not None, "rollout.lag needs its lags, which are in the Plan"
    return oldest + 2
