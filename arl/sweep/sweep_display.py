"""Show a sweep to a person: its arms before it starts, one line for each event, and what it came to."""

import json
import os
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from arl.metrics.names import OF_EVALUATION
from arl.metrics.run_files import SUMMARY
from arl.metrics.summary import Summary
from arl.sweep.axes import write_override
from arl.sweep.sweep_directory import SweepRun


class RunProgress:
    """Follow how far a run is by its metrics.jsonl, while it grows: its step, its last reward and accuracy.

    Args:
        metrics: its metrics.jsonl, which may not exist yet.
        steps: that the run has at most.
        suite: whose accuracy is shown.
    """

    def __init__(self, metrics: Path, steps: int, suite: str) -> None:
        self.steps = steps
        self.step = 0
        self.reward: float | None = None
        self.accuracy: float | None = None
        self._accuracy_name = f"{OF_EVALUATION}{suite}/accuracy"
        self._metrics = metrics
        self._offset = 0  # where the first line begins that was not read yet
        self.refresh()

    def refresh(self) -> bool:
        """Read what is new; return whether an evaluation of the suite is among it."""
        has_evaluated = False
        for record in self._new_records():
            if self._accuracy_name in record:
                self.accuracy = record[self._accuracy_name]
                has_evaluated = True
            if "tokens/trained" in record:  # of a step
                self.step = record["step"]
                self.reward = record.get("reward/trained_mean", self.reward)
        return has_evaluated

    def _new_records(self) -> Iterator[dict[str, Any]]:
        """Yield each record whose line is complete; of a file that a resumed run cuts back, from its beginning."""
        if not os.path.exists(self._metrics):
            return
        with self._metrics.open("rb") as file:
            if file.seek(0, os.SEEK_END) < self._offset:
                self._offset = 0
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # it is being written: the next look begins here
                self._offset += len(line)
                yield json.loads(line)


class SweepDisplay:
    """Print what happens to runs, and count those that are finished.

    Args:
        total: runs of the sweep.
        finished: runs that were finished before.
    """

    def __init__(self, console: Console, total: int, finished: int) -> None:
        self._console = console
        self._total = total
        self._finished = finished

    def note(self, text: str) -> None:
        """Print one line."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def started(self, run: SweepRun, progress: RunProgress) -> None:
        """Tell of a run that starts or goes on."""
        how = f"goes on after step {progress.step}" if progress.step else "starts"
        self.note(f"{run}: {how}; log {run.log}")

    def evaluated(self, run: SweepRun, progress: RunProgress) -> None:
        """Tell of a new evaluation of a run; a dash stands for an unknown number."""
        reward, accuracy = _number(progress.reward), _number(progress.accuracy)
        self.note(f"{run}: step {progress.step}/{progress.steps}  reward {reward}  accuracy {accuracy}")

    def finished(self, run: SweepRun, progress: RunProgress, seconds: float) -> None:
        """Count a run that is finished."""
        self._finished += 1
        count = f"{self._finished} of {self._total} runs"
        self.note(f"{run}: finished in {seconds:.0f} s, accuracy {_number(progress.accuracy)}; {count}")

    def failed(self, run: SweepRun, why: str) -> None:
        """Tell of a run that failed."""
        self.note(f"{run}: failed: {why}")


def print_plan(runs: Sequence[SweepRun], base: Mapping[str, Any], jobs: int, console: Console) -> None:
    """Print every arm with the states of its runs.

    Args:
        base: field -> value of the recipe without any arm's settings.
    """
    table = _table("arm", "settings", "seeds", "state")
    for of_arm in _by_arm(runs):
        arm = of_arm[0].arm.arm
        settings = [  # without what is null in the recipe and stays so
            write_override(field, value)
            for field, value in arm.settings.items()
            if value is not None or base.get(field) is not None
        ]
        states = Counter(run.state for run in of_arm)
        table.add_row(
            arm.name,
            "\n".join(settings),
            ", ".join(str(run.seed) for run in of_arm),
            ", ".join(f"{count} {state}" for state, count in states.items()),
        )
    console.print(table)
    left = sum(run.state != "finished" for run in runs)
    text = f"{left} of {len(runs)} runs to do, {jobs} at a time" if left else f"all {len(runs)} runs are finished"
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def print_results(runs: Sequence[SweepRun], console: Console) -> None:
    """Print the final accuracy of every arm: its mean over the finished seeds, the least and the greatest."""
    table = _table("arm", right=("seeds", "accuracy", "least", "greatest"))
    for of_arm in _by_arm(runs):
        finished = [run for run in of_arm if run.state == "finished"]
        summaries = [msgspec.json.decode((run.directory / SUMMARY).read_bytes(), type=Summary) for run in finished]
        found = [one.accuracy_after for one in summaries if one.accuracy_after is not None]
        numbers = (statistics.fmean(found), min(found), max(found)) if found else (None, None, None)
        table.add_row(of_arm[0].arm.name, f"{len(finished)}/{len(of_arm)}", *map(_number, numbers))
    console.print(table)


def _table(*left: str, right: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in left:
        table.add_column(column, overflow="fold")
    for column in right:
        table.add_column(column, justify="right")
    return table


def _by_arm(runs: Sequence[SweepRun]) -> list[list[SweepRun]]:
    arms: dict[str, list[SweepRun]] = {}
    for run in runs:
        arms.setdefault(run.arm.name, []).append(run)
    return list(arms.values())


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
