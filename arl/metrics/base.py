"""Define the seam of trackers: services or files that mirror metrics.jsonl."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from arl.metrics.names import AGE_BUCKETS, Record
from arl.metrics.sampled_episode import SampledEpisode


class TrackedRun(Struct, frozen=True):
    """Describe the run that is tracked."""

    name: str  # of the run directory, like quickstart-2; in a sweep with that of its arm, like staleness=8/seed-0
    directory: Path  # a tracker may write below it
    config: dict[str, Any]  # the whole recipe, as JSON; values of environment variables are left out
    note: Callable[[str], None]  # shows one line to the user
    past: Sequence[Record] = ()  # of a resumed run: the lines that metrics.jsonl keeps, which `log` is not given again


class Tracker(Protocol):
    """Mirror the metrics of a run. It is made by calling the recipe's `module:attribute` with a TrackedRun.

    All calls come from one thread of its own, in order, so it may block. Example, chosen by
    `output: {trackers: ["my_tracker:CsvTracker"]}`:

        class CsvTracker:
            def __init__(self, run: TrackedRun) -> None:
                self._file = (run.directory / "reward.csv").open("a")

            def log(self, record: Record) -> None:
                print(record["step"], record.get("reward/trained_mean", ""), sep=",", file=self._file)

            def close(self) -> None:
                self._file.close()
    """

    def log(self, record: Record) -> None:
        """Take one line of metrics.jsonl; arl.metrics.names defines its metrics."""

    def close(self) -> None:
        """Finish, because the run has ended or is interrupted. A resumed run makes the tracker anew."""


class SampleTracker(Tracker, Protocol):
    """Also show episodes: a tracker with this third method is given some of every `output.samples_every`-th step."""

    def log_samples(self, step: int, samples: Sequence[SampledEpisode]) -> None:
        """Take a few trained episodes of a step, after its record was logged."""


class TrackerFactory(Protocol):
    """Make the tracker of a run: a class whose instances are trackers, or a function that returns one."""

    def __call__(self, run: TrackedRun) -> Tracker: ...


def chart_values(record: Record) -> Iterator[tuple[str, float | list[int]]]:
    """Yield the name and the value of each chart: a number, or the counts of age 0, 1, …

    A list by age bucket is one chart for each bucket that has a number, as in `by_age/ratio/3-4`.
    """
    for name, value in record.items():
        if not isinstance(value, list):
            yield name, value
        elif name.endswith("/histogram"):
            yield name, [count for count in value if isinstance(count, int)]
        else:
            for label, entry in zip(AGE_BUCKETS, value, strict=True):
                if entry is not None:
                    yield f"{name}/{label}", entry
