"""Print the arms of a sweep as tables: before it starts, and what it came to."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from arl.metrics.run_files import SUMMARY
from arl.metrics.summary import Summary
from arl.sweep.axes import write_override
from arl.sweep.combinations import SweepArm
from arl.sweep.sweep_directory import SweepRun


def print_plan(
    runs: Sequence[SweepRun],
    base: Mapping[str, Any],
    jobs: int,
    console: Console,
) -> None:
    """Print every arm with the states of its runs.

    Args:
        base: field -> value of the recipe without any arm's settings.
    """
    table = _table("arm", "settings", "seeds", "state")
    for of_arm in _by_arm(runs):
        arm = of_arm[0].arm.arm
        seeds = ", ".join(str(run.seed) for run in of_arm)
        table.add_row(
            arm.name,
            _settings(arm, base),
            seeds,
            _states(of_arm),
        )
    console.print(table)
    console.print(_left(runs, jobs), markup=False, highlight=False, soft_wrap=True)


def print_results(runs: Sequence[SweepRun], console: Console) -> None:
    """Print the final accuracy of every arm: its mean over the finished seeds, the least and the greatest."""
    table = _table("arm", right=("seeds", "accuracy", "least", "greatest"))
    for of_arm in _by_arm(runs):
        finished = [run for run in of_arm if run.state == "finished"]
        summaries = [msgspec.json.decode((run.directory / SUMMARY).read_bytes(), type=Summary) for run in finished]
        accuracies = [one.accuracy_after for one in summaries if one.accuracy_after is not None]
        table.add_row(of_arm[0].arm.name, f"{len(finished)}/{len(of_arm)}", *_mean_and_range(accuracies))
    console.print(table)


def _mean_and_range(accuracies: Sequence[float]) -> list[str]:
    """Write mean, least and greatest accuracy; dashes where there is none."""
    if not accuracies:
        return ["–", "–", "–"]
    mean = statistics.fmean(accuracies)
    least = min(accuracies)
    greatest = max(accuracies)
    return [f"{accuracy:.3f}" for accuracy in (mean, least, greatest)]


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


def _settings(arm: SweepArm, base: Mapping[str, Any]) -> str:
    """Write what an arm sets, a line for each field, without what is null in the recipe and stays so."""
    lines = []
    for field, value in arm.settings.items():
        if value is not None or base.get(field) is not None:
            lines.append(write_override(field, value))
    return "\n".join(lines)


def _states(runs: Sequence[SweepRun]) -> str:
    counts = Counter(run.state for run in runs)
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def _left(runs: Sequence[SweepRun], jobs: int) -> str:
    left = sum(run.state != "finished" for run in runs)
    return f"{left} of {len(runs)} runs to do, {jobs} at a time" if left else f"all {len(runs)} runs are finished"
