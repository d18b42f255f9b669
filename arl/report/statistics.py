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
MIN_SEEDS = 3  # for a verdict: what two of them have in common may be chance
TAILS = (2.5, 97.5)  # percentiles, which 95 % of the means drawn lie between
Z = NormalDist().inv_cdf(0.975)
# The 97.5 % quantile of Student's t with 1, 2, … degrees of freedom.
T_OF_FEW = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


class MeanOfSeeds(Struct, frozen=True):
    """Hold a mean over seeds with its interval."""

    mean: float
    low: float  # NaN: one seed has no interval
    high: float
    seeds: int

    @property
    def has_interval(self) -> bool:
        """Return whether there are seeds enough for one."""
        return self.seeds > 1

    @property
    def negative(self) -> "MeanOfSeeds":
        """Return the mean of the same numbers with the other sign."""
        return MeanOfSeeds(-self.mean, -self.high, -self.low, self.seeds)


def text(estimate: MeanOfSeeds | None, form: str = ".3g", with_interval: bool = False) -> str:
    """Write a mean with the given format; a dash where nothing was measured."""
    if estimate is None:
        return "–"
    mean = format(estimate.mean, form)
    if not with_interval or not estimate.has_interval:
        return mean
    return f"{mean} [{estimate.low:{form}}, {estimate.high:{form}}]"


def mean_of_seeds(values: Sequence[float]) -> MeanOfSeeds | None:
    """Compute the mean of the numbers that were measured, with its interval; None if none was."""
    column = np.array(values).reshape(-1, 1)
    seeds = int(np.isfinite(column).sum())
    if seeds == 0:
        return None
    mean, low, high = curve_of_seeds(column, RESAMPLES)
    return MeanOfSeeds(mean.item(), low.item(), high.item(), seeds)


def difference_of_means(ones: Sequence[float], others: Sequence[float]) -> MeanOfSeeds | None:
    """Compute mean(ones) − mean(others) of unlike seeds, each side resampled by itself; None without one of them."""
    seeds = min(len(ones), len(others))
    if seeds == 0:
        return None
    one = np.array(ones)
    other = np.array(others)
    mean = float(one.mean() - other.mean())
    if seeds == 1:
        return MeanOfSeeds(mean, math.nan, math.nan, seeds)
    drawn = _deviations(one, RESAMPLES) - _deviations(other, RESAMPLES, is_other=True)
    low, high = _interval(np.array(mean), drawn)
    return MeanOfSeeds(mean, low.item(), high.item(), seeds)


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


def curve_of_seeds(
    values: np.ndarray, resamples: int = RESAMPLES_OF_CURVES
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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
            low[points], high[points] = _interval(mean[points], _deviations(there, resamples))
    return mean, low, high


def _interval(mean: np.ndarray, deviations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of what was drawn around the mean, which they always hold."""
    low, high = np.percentile(deviations, TAILS, axis=0)
    return mean + np.minimum(low, 0.0), mean + np.maximum(high, 0.0)


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
