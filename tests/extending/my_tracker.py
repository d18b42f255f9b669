"""A user's tracker, outside arl: it writes the reward of each step to a CSV file."""

from collections.abc import Sequence

from arl.metrics.base import TrackedRun
from arl.metrics.names import Record
from arl.metrics.sampled_episode import SampledEpisode


class CsvTracker:
    def __init__(self, run: TrackedRun) -> None:
        self._file = (run.directory / "reward.csv").open("a")
        print("name", run.name, run.config["train"]["steps"], sep=",", file=self._file)

    def log(self, record: Record) -> None:
        print("step", record["step"], record.get("reward/trained_mean", ""), sep=",", file=self._file)

    def close(self) -> None:
        print("closed", file=self._file)
        self._file.close()


class SamplingTracker(CsvTracker):
    def log_samples(self, step: int, samples: Sequence[SampledEpisode]) -> None:
        for sample in samples:
            print("sample", step, sample.problem_id, sample.age, sample.advantage, sep=",", file=self._file)


class BrokenTracker(CsvTracker):
    def log(self, record: Record) -> None:
        raise OSError("no space left")


class HalfTracker:
    def __init__(self, run: TrackedRun) -> None: ...

    def log(self, record: Record) -> None: ...
