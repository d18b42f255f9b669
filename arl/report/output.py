"""Show a report: in a terminal a compact table for each question, or as one HTML page that opens offline.

Names are those of directories and settings, and models wrote the episodes. So the terminal reads nothing as rich's
markup (`[lr3]` and `:bug:` stay as they are), and the page escapes all text.
"""

import re
from importlib.resources import files
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from arl.errors import InputError
from arl.report.assemble import Report
from arl.report.parts import Figure, Table
from arl.report.token_viewer import ShownEpisode, choose_episodes

FILE_WIDTH = 160  # columns, where the output is no terminal
MIN_NAME = 32  # characters of an arm's name that are kept on one line
LAYOUT = {"height": 340, "margin": {"t": 20, "r": 20}, "legend": {"orientation": "h", "y": -0.25}}


def print_report(report: Report, console: Console) -> None:
    """Print every section without figures and what is folded on a page."""
    if not console.is_terminal:
        console.width = max(console.width, FILE_WIDTH)
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


def write_page(report: Report, path: Path) -> None:
    """Write the page to a file.

    Raises:
        InputError: the file cannot be written.
    """
    notes: list[str] = []
    page = render_page(report, choose_episodes(report.arms, notes), notes)
    try:
        path.write_text(page, encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"--out {path}: cannot be written ({error.strerror}); name a file in a directory") from error


def render_page(report: Report, episodes: list[ShownEpisode], notes: list[str]) -> str:
    """Return the page; the same report gives the same bytes."""
    from jinja2 import Environment
    from plotly.offline import get_plotlyjs  # of 5 MB, so only a page reads it

    source = files("arl.report").joinpath("assets/report.html").read_text(encoding="utf-8")
    template = Environment(autoescape=True, trim_blocks=True).from_string(source)
    return template.render(
        title=report.title,
        sections=report.sections,
        episodes=episodes,
        notes=notes,
        draw=_draw,
        plotly=get_plotlyjs(),
    )


def _draw(figure: Figure) -> str:
    """Return a figure as HTML. Names in it are JSON whose `<` plotly escapes."""
    from plotly.io import to_html

    drawn = {"data": figure.traces, "layout": LAYOUT | figure.layout}
    div_id = re.sub(r"\W+", "-", figure.title)  # plotly's own would be random
    shown = {"include_plotlyjs": False, "full_html": False, "config": {"responsive": True}, "default_height": 340}
    html: str = to_html(drawn, div_id=div_id, validate=False, **shown)
    return html
