"""Compute means over seeds with bootstrap intervals, and values between measurements.

The bootstrap draws as many seeds as there are, with replacement, `RESAMPLES` times, from a fixed random seed, so that a
report of the same files is the same to the bit. An interval holds the middle 95 % of the means drawn, widened by

    √(n/(n − 1)) · t/z    t, z: the 97.5 % quantiles of Student's t with n − 1 degrees of freedom and of the normal law

because means of n draws from n values spread less than means of n new values, and because n values say little of their
spread. So two or three seeds have wide intervals. With one seed there is no interval. After T. Hesterberg, "What
Teachers Should Know About the Bootstrap", The American Statistician 69(4), 2015, which expands percentiles instead.
"""

import functools
import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from msgspec import Struct

RESAMPLES = 10_000
RESAMPLES_OF_CURVES = 1_000  # at each point of a curve
TAILS = (2.5, 97.5)  # percentiles, which 95 % of the means drawn lie between
Z = NormalDist().inv_cdf(0.975)
# The 97.5 % quantile of Student's t with 1, 2, … degrees of freedom.
T_OF_FEW = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


class MeanOfSeeds(Struct, frozen=True):
    """Hold a mean over seeds with its interval."""

    mean: float
    low: float | None  # None: one seed has no interval
    high: float | None
    seeds: int

    @property
    def bounds(self) -> tuple[float, float]:
        """Return the interval; without one, the mean itself."""
        if self.low is None or self.high is None:
            return self.mean, self.mean
        return self.low, self.high

    @property
    def negative(self) -> "MeanOfSeeds":
        """Return the mean of the same numbers with the other sign."""
        if self.low is None or self.high is None:
            return MeanOfSeeds(-self.mean, None, None, self.seeds)
        return MeanOfSeeds(-self.mean, -self.high, -self.low, self.seeds)

    @property
    def holds_zero(self) -> bool:
        """Return whether the interval says that 0 is possible; without an interval, it does."""
        low, high = self.bounds
        return self.low is None or low <= 0 <= high


def text(estimate: MeanOfSeeds | None, form: str = ".3g", with_interval: bool = False) -> str:
    """Write a mean with the given format; a dash where nothing was measured."""
    if estimate is None:
        return "–"
    mean = format(estimate.mean, form)
    if estimate.low is None or not with_interval:
        return mean
    low, high = estimate.bounds
    return f"{mean} [{low:{form}}, {high:{form}}]"


def mean_of_seeds(values: Sequence[float]) -> MeanOfSeeds | None:
    """Compute the mean of the numbers that were measured, with its interval; None if none was."""
    measured = _measured(values)
    if len(measured) == 0:
        return None
    mean = float(measured.mean())
    if len(measured) == 1:
        return MeanOfSeeds(mean, None, None, seeds=1)
    low, high = _interval(measured[:, None], RESAMPLES)
    return MeanOfSeeds(mean, low.item(), high.item(), seeds=len(measured))


def difference_of_means(ones: Sequence[float], others: Sequence[float]) -> MeanOfSeeds | None:
    """Compute mean(ones) − mean(others) of unlike seeds, each side resampled by itself; None without one of them."""
    one = _measured(ones)
    other = _measured(others)
    seeds = min(len(one), len(other))
    if seeds == 0:
        return None
    mean = float(one.mean() - other.mean())
    if seeds == 1:
        return MeanOfSeeds(mean, None, None, seeds=1)
    of_one = _deviations(one, RESAMPLES)
    of_other = _deviations(other, RESAMPLES, is_other=True)
    low, high = np.percentile(of_one - of_other, TAILS).tolist()
    return MeanOfSeeds(mean, mean + min(low, 0.0), mean + max(high, 0.0), seeds)


def _measured(values: Sequence[float]) -> np.ndarray:
    return np.array([value for value in values if math.isfinite(value)])


def widening(num_seeds: int) -> float:
    """Return the factor by which intervals of means of two or more resampled seeds are widened, see above."""
    degrees = num_seeds - 1
    if degrees <= len(T_OF_FEW):
        student_t = T_OF_FEW[degrees - 1]
    else:  # by its expansion (Abramowitz and Stegun 26.7.5)
        first = (Z**3 + Z) / (4 * degrees)
        second = (5 * Z**5 + 16 * Z**3 + 3 * Z) / (96 * degrees**2)
        student_t = Z + first + second
    spread = math.sqrt(num_seeds / degrees)
    return spread * student_t / Z


def curve_of_seeds(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute mean, low and high at each point, over the seeds that were measured there.

    Args:
        values: (seeds, points) float, NaN where a seed was not measured.

    Returns:
        Three arrays (points,) float; NaN without any seed, and bounds NaN with fewer than two.
    """
    mean, low, high = np.full((3, values.shape[1]), np.nan)
    measured = np.isfinite(values)
    patterns = np.unique(measured, axis=1).T  # points at which the same seeds were measured are computed together
    for pattern in patterns:
        points = (measured == pattern[:, None]).all(axis=0)
        there = values[pattern][:, points]
        if len(there) > 0:
            mean[points] = there.mean(axis=0)
        if len(there) > 1:
            low[points], high[points] = _interval(there, RESAMPLES_OF_CURVES)
    return mean, low, high


def _interval(values: np.ndarray, resamples: int) -> tuple[np.ndarray, np.ndarray]:
    """Compute the bounds of the mean over rows of (seeds, points), two or more seeds."""
    center = values.mean(axis=0)
    low, high = np.percentile(_deviations(values, resamples), TAILS, axis=0)
    return center + np.minimum(low, 0.0), center + np.maximum(high, 0.0)


def _deviations(values: np.ndarray, resamples: int, is_other: bool = False) -> np.ndarray:
    """Draw how far means of resampled seeds are from the mean, widened: (resamples, …) for values of (seeds, …).

    Args:
        is_other: draw independently of the values that these are compared with.
    """
    num_seeds = len(values)
    weights = _weights(num_seeds, resamples, is_other)
    drawn: np.ndarray = weights @ (values - values.mean(axis=0))
    return widening(num_seeds) * drawn


@functools.lru_cache(maxsize=64)
def _weights(num_seeds: int, resamples: int, is_other: bool) -> np.ndarray:
    """Draw how much each seed counts in each resample, (resamples, seeds) float; rows sum to 1."""
    random = np.random.default_rng([num_seeds, 1] if is_other else num_seeds)
    share = np.full(num_seeds, 1 / num_seeds)
    return random.multinomial(num_seeds, share, size=resamples) / num_seeds


def at_each(x: np.ndarray, y: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Interpolate y at each of `wanted`; NaN outside of what was measured, because nothing is known there.

    Args:
        x: (n,) float, increasing.
        y: (n,) float; NaN where it was not measured.
    """
    measured = np.isfinite(x) & np.isfinite(y)
    if not measured.any():
        return np.full(len(wanted), np.nan)
    values: np.ndarray = np.interp(wanted, x[measured], y[measured], left=np.nan, right=np.nan)
    return values


def weighted_mean(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the weighted mean of each column, (width,) float; NaN for a column without any weight.

    Args:
        values: (rows, width) float; NaN where nothing was measured.
        weights: (rows, width) float, ≥ 0.
    """
    known = np.ma.masked_invalid(values)
    mean: np.ndarray = np.ma.average(known, axis=0, weights=np.nan_to_num(weights))
    return np.ma.filled(mean, np.nan)
