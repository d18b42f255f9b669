"""Say when the training of a run leaves the range of its own beginning, in one line for each metric.

A falling effective sample size comes before a collapse (arXiv 2602.17616), and so do gradients that stay aligned from
update to update (arXiv 2603.01501).

records ─► a series for each watched metric, and for each of its ages ─► the first BEGINNING values give its range
                                                                    └─► IN_A_ROW values outside give the alarm

A run may be broken from its beginning on, so some values are outside of any range.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median, quantiles
from typing import NamedTuple

from arl.metrics.names import AGE_BUCKETS

BEGINNING = 6  # values of a series
IN_A_ROW = 3
SPREADS = 2.0  # interquartile ranges from the median to the end of the range


class Watched(NamedTuple):
    """Name a metric that shows an instability, how far from its beginning it must be, and what to change then."""

    sign: int  # 1: it rises, −1: it falls
    least: float  # difference from the median, however narrow the range is
    factor: float  # ratio to the median
    worst: float  # beyond it a value is outside, whatever the beginning was
    remedy: str


KL = "by_age/kl_behavior_current"
WATCHED = {  # with bounds that no run of the quickstart leaves while it learns, up to staleness 16
    "behavior_weight/effective_sample_size": Watched(
        -1, 0.2, 0.5, 0.3, "lower rollout.staleness (or lag) or train.learning_rate, as train.scale_by_ess does"
    ),
    "grad_cosine/previous": Watched(1, 0.4, 0.0, 0.9, "lower rollout.staleness (or lag) or train.learning_rate"),
    KL: Watched(1, 0.1, 4.0, 1.0, "lower train.learning_rate, the clip or rollout.staleness (or lag)"),
}


class Alarms:
    """Watch the records of a run; `said` has the lines so far, at most one for each metric."""

    def __init__(self) -> None:
        self.said: dict[str, str] = {}  # metric -> line
        self._beginnings: dict[str, list[float]] = {}  # series -> its first values
        self._outside: dict[str, int] = {}  # series -> last values in a row that are outside of its range

    def add(self, record: Mapping[str, float | Sequence[float | None]]) -> None:
        """Take the next record; a value that is missing, None or NaN, counts for nothing."""
        for name in WATCHED.keys() & record.keys():
            for series, value in _series(name, record[name]):
                if value is None or value != value:
                    continue
                if self._is_alarming(name, series, value) and name not in self.said:
                    first = self._beginnings[series]
                    known = len(first) == BEGINNING
                    before = f", and was {median(first):.3g} in the run's beginning" if known else ""
                    self.said[name] = (
                        f"step {record['step']:.0f}: {series} is {value:.3g}{before}: {WATCHED[name].remedy}"
                    )

    def _is_alarming(self, name: str, series: str, value: float) -> bool:
        first = self._beginnings.setdefault(series, [])
        sign, least, factor, worst, _ = WATCHED[name]
        is_outside = sign * (value - worst) > 0
        if len(first) < BEGINNING:
            first.append(value)
        else:
            low, middle, high = quantiles(first)
            has_left = sign * (value - middle) > max(least, SPREADS * (high - low))
            is_outside = is_outside or (has_left and sign * (value - factor * middle) > 0)
        self._outside[series] = self._outside.get(series, 0) + 1 if is_outside else 0
        return self._outside[series] >= IN_A_ROW


def _series(name: str, values: float | Sequence[float | None]) -> Iterable[tuple[str, float | None]]:
    """Yield the name and the value of each series that a record's metric belongs to."""
    if not isinstance(values, Sequence):
        return [(name, values)]
    return [(f"{name} at age {age}", value) for age, value in zip(AGE_BUCKETS, values, strict=True)]
