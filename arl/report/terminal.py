"""Print a report in a terminal: a compact table for each question, sentences and warnings.

Names are those of directories and settings, so nothing is read as rich's markup: `[lr3]` and `:bug:` stay as they are.
"""

from collections.abc import Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from arl.report.assemble import Report
from arl.report.parts import Prose, ReportSection, Table

FILE_WIDTH = 160  # columns, where the output is no terminal
LEAST_NAME = 32  # characters of an arm's name that are kept on one line
SHOWN = {  # ids of the tables of each section that a terminal shows; a page shows all
    "overview": ("arms",),
    "comparison": ("values-", "table-2"),
    "speed": ("speed-table", "trainer-shares", "engine-shares"),
    "staleness": ("staleness-table",),
    "ledger": ("ledger-tokens",),
    "advice": (),
}


def print_report(report: Report, console: Console) -> None:
    """Print every section without what is folded on a page."""
    if not console.is_terminal:
        console.width = max(console.width, FILE_WIDTH)
    for section in report.sections:
        _print_section(section, console)


def _print_section(section: ReportSection, console: Console) -> None:
    console.print(section.title, style="bold", markup=False, emoji=False)
    shown = SHOWN[section.id]
    for item in section.items:
        if isinstance(item, Prose):
            _print_lines(item.lines, console)
        elif isinstance(item, Table) and item.id.startswith(shown):
            console.print(_table(item))


def _print_lines(lines: Sequence[str], console: Console) -> None:
    for line in lines:
        console.print(f"  {line}", markup=False, emoji=False, soft_wrap=True)
    console.print()


def _table(table: Table) -> RichTable:
    drawn = RichTable(box=SIMPLE, title=Text(table.title, "table.title"), title_justify="left")
    longest = max((len(row[0]) for row in table.rows), default=0)
    for i, name in enumerate(table.header):
        is_numeric = bool(table.numeric) and table.numeric[i]
        drawn.add_column(
            Text(name),
            justify="right" if is_numeric else "left",
            overflow="fold",
            min_width=min(longest, LEAST_NAME) if i == 0 else None,
        )
    for row in table.rows:
        drawn.add_row(*map(Text, row))
    return drawn
