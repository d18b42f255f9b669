"""Write a report as one HTML page that opens offline: figures by plotly, everything else by a template.

What a model wrote is escaped, as all text is.
"""

from importlib.resources import files
from pathlib import Path
from typing import Any

from arl.errors import InputError
from arl.report.assemble import Report
from arl.report.parts import Figure
from arl.report.shown_episodes import ShownEpisode, choose_episodes

TEMPLATE = "assets/report.html"


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

    source = files("arl.report").joinpath(TEMPLATE).read_text(encoding="utf-8")
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

    layout: dict[str, Any] = {"width": 620, "height": 340, "margin": {"t": 20, "r": 20}}
    layout["legend"] = {"orientation": "h", "y": -0.25}
    drawn = {"data": figure.traces, "layout": layout | figure.layout}
    html: str = to_html(drawn, include_plotlyjs=False, full_html=False, div_id=f"{figure.id}-plot", validate=False)
    return html
