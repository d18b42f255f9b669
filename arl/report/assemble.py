"""Put a report together: read runs, group them, and answer each question in a section.

paths ─► read_runs ─► arms ─┬► comparison ─┐
                            ├► overview    │
                            ├► speed       │
                            ├► staleness   ├─► Report ─► terminal, page, JSON
                            ├► ledger      │
                            └► advice ─────┘
"""

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from arl.report.advice import advice_section
from arl.report.arms import Arm, make_arms
from arl.report.comparison import Comparison, compare, comparison_section
from arl.report.ledger_section import ledger_section
from arl.report.overview import overview_section
from arl.report.parts import ReportSection
from arl.report.protocols import unlike_fields
from arl.report.quantities import Budget, possible_budgets
from arl.report.read_runs import LoadedRun, load_runs
from arl.report.speed import speed_section
from arl.report.staleness_section import staleness_section


class Report(Struct, frozen=True):
    """Hold a whole report."""

    title: str
    arms: list[Arm]
    comparison: Comparison
    notes: list[str]
    sections: list[ReportSection]

    @property
    def runs(self) -> list[LoadedRun]:
        """Return the runs that are compared, arm by arm."""
        return [run for arm in self.arms for run in arm.runs]


def build_report(paths: Sequence[Path], budgets: Sequence[Budget] = ()) -> Report:
    """Compare the runs that lie in `paths` or below.

    Args:
        budgets: where values are compared, beside the last measurement; none: the usual steps.

    Raises:
        InputError: there is nothing to compare.
    """
    loaded = load_runs(paths)
    grouped = make_arms(loaded.runs)
    arms = grouped.arms
    comparison = compare(arms, possible_budgets(arms, budgets))
    notes = [*loaded.notes, *grouped.notes, *unlike_fields(quantity.protocol for quantity in comparison.quantities)]
    sections = [
        comparison_section(comparison, notes),
        overview_section(comparison),
        speed_section(arms),
        staleness_section(arms),
        ledger_section(arms),
        advice_section(arms),
    ]
    num_runs = sum(len(arm.runs) for arm in arms)
    title = f"{_count(len(arms), 'arm')}, {_count(num_runs, 'run')}"
    return Report(title, arms, comparison, notes, sections)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"
