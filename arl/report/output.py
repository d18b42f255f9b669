"""Show a report: in a terminal a compact table for each question, as one HTML page that opens offline, and as files.

Names are those of directories and settings, and models wrote the episodes. So the terminal reads nothing as rich's
markup (`[lr3]` and `:bug:` stay as they are), and the page escapes all text.
"""

import csv
import io
import re
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from arl.errors import InputError
from arl.report.assemble import Report, numbers_of
from arl.report.drawing import draw, template
from arl.report.parts import CURVES, Figure, Table
from arl.report.token_viewer import ShownEpisode, choose_episodes

FILE_WIDTH = 160  # columns, where the output is no terminal
NUMBERS = "numbers.json"
MIN_NAME = 32  # characters of an arm's name that are kept on one line
LATEX = str.maketrans(  # what LaTeX reads as a command, and what its usual fonts lack
    {char: rf"\{char}" for char in "#$%&_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "‖": r"$\Vert$"}
    | {"<": "$<$", ">": "$>$", "|": "$|$", "≈": r"$\approx$", "∞": r"$\infty$", "±": r"$\pm$", "…": r"\dots{}"}
    | {"[": "{[}"}  # behind a line's end it would be a length
)


def print_report(report: Report, console: Console) -> None:
    """Print every section without figures and what is folded on a page."""
    if not console.is_terminal:
        console.width = max(console.width, FILE_WIDTH)
    console.print(f"{report.title}   {' · '.join(report.facts)}\n", markup=False, emoji=False, soft_wrap=True)
    for section in report.sections:
        console.print(section.title, style="bold", markup=False, emoji=False)
        for item in section.items:
            if isinstance(item, str):
                console.print(f"  {item}", markup=False, emoji=False, soft_wrap=True)
            elif isinstance(item, Table):
                console.print(_rich_table(item))
        console.print()


def _rich_table(table: Table) -> RichTable:
    drawn = RichTable(box=SIMPLE, title=Text(table.title, "table.title"), title_justify="left")
    for name, is_numeric in zip(table.header, table.numeric, strict=True):
        drawn.add_column(Text(name), justify="right" if is_numeric else "left", overflow="fold")
    longest = max((len(row[0]) for row in table.rows), default=0)
    drawn.columns[0].min_width = min(longest, MIN_NAME)
    for row in table.rows:
        drawn.add_row(*map(Text, row))
    return drawn


def write_report(report: Report, path: Path) -> Path:
    """Write PATH.html, and in PATH each figure as SVG, each table as CSV and as LaTeX, and all numbers as JSON.

    Where PATH is a directory that holds no report, such as `.`, they are written into it, as report.html and report.

    Returns:
        The page.

    Raises:
        InputError: a file cannot be written.
    """
    notes: list[str] = []
    named = path.resolve()
    if named.is_dir() and not (named / NUMBERS).exists():
        named /= "report"
    folder = named.with_name(named.name.removesuffix(".html"))
    page = folder.with_name(f"{folder.name}.html")
    texts = {page: render_page(report, choose_episodes(report.arms, notes), notes)}
    texts[folder / NUMBERS] = numbers_of(report)
    for item in (item for section in report.sections for item in [*section.items, *section.more]):
        if isinstance(item, Figure) and item.series:
            texts[folder / "figures" / f"{_slug(item.title)}.svg"] = draw(item)
        elif isinstance(item, Table):
            texts[folder / "tables" / f"{_slug(item.title)}.csv"] = _csv(item)
            texts[folder / "tables" / f"{_slug(item.title)}.tex"] = _latex(item)
    for file, text in texts.items():
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8", errors="replace")
        except OSError as error:
            raise InputError(f"--out {file}: cannot be written ({error.strerror}); give another place") from error
    return page


def _slug(title: str) -> str:
    """Return the name of a file: `Accuracy on held_out, percent` is `accuracy-on-held-out-percent`."""
    return re.sub(r"[\W_]+", "-", title.lower()).strip("-")[:120]


def _csv(table: Table) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([table.header, *table.rows])
    return file.getvalue()


def _latex(table: Table) -> str:
    """Write a tabular, which needs no package."""
    columns = "".join("r" if is_numeric else "l" for is_numeric in table.numeric)
    header, *rows = [rf"{' & '.join(cell.translate(LATEX) for cell in row)} \\" for row in [table.header, *table.rows]]
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\hline", header, r"\hline", *rows, r"\hline", r"\end{tabular}", ""]
    return "\n".join(lines)


def render_page(report: Report, episodes: list[ShownEpisode], notes: list[str]) -> str:
    """Return the page; the same report gives the same bytes."""
    return template("report.html").render(report=report, episodes=episodes, notes=notes, draw=draw, curves=CURVES)
