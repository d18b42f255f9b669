"""Write a report as one HTML file that opens offline, with everything that it shows inside.

    sections, swimlane, viewer ─► HTML of the parts + data as JSON + assets/*.css, plotly, assets/*.js ─► one page

What a model wrote is hostile input. It is in the page only as JSON whose `<` is escaped, scripts set it as text, and
the page's Content-Security-Policy runs the scripts written here, by their hashes, and loads nothing.
"""

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

from arl.report.encoded import encode, whole_characters
from arl.report.packed_numbers import pack_numbers
from arl.report.page_parts import section_html, swimlane_html, viewer_html
from arl.report.parts import Figure, ReportSection
from arl.report.swimlane import Swimlanes
from arl.report.viewer import ViewerData

STYLES = ("theme.css", "page.css", "viewer.css")
SCRIPTS = ("theme.js", "figures.js", "tables.js", "tokens.js", "detail.js", "viewer.js")
SWIMLANE = ("swimlane", "Episodes over time")
VIEWER = ("trajectories", "Trajectories")


def render_page(
    title: str,
    sections: Sequence[ReportSection],
    swimlane: Swimlanes | None = None,
    viewer: ViewerData | None = None,
) -> str:
    """Return the page. Parts without anything to show are left out."""
    contents = [(section.id, section.title) for section in sections]
    body = [section_html(section) for section in sections]
    figures = [item for section in sections for item in section.all_items if isinstance(item, Figure)]
    data = []
    if swimlane is not None and (swimlane.figures or swimlane.notes):
        contents.append(SWIMLANE)
        body.append(swimlane_html(*SWIMLANE, swimlane))
        figures += swimlane.figures
    if viewer is not None and (viewer.trajectories or viewer.notes):
        contents.append(VIEWER)
        body.append(viewer_html(*VIEWER, viewer, _asset("viewer.html")))
        if viewer.trajectories:
            data.append(data_block("viewer-data", viewer))
    data.append(data_block("figures-data", _figure_data(figures)))
    page = _page(title, contents, body, data)
    whole: str = whole_characters(page)
    return whole


def _figure_data(figures: Sequence[Figure]) -> dict[str, Any]:
    return {figure.id: {"traces": pack_numbers(figure.traces), "layout": figure.layout} for figure in figures}


def data_block(id: str, data: object) -> str:
    """Return data as an element that no parser of HTML takes for anything else; NaN is null."""
    text = encode(data).decode("utf-8")
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="{id}">{text}</script>'


def _page(title: str, contents: Sequence[tuple[str, str]], body: Sequence[str], data: Sequence[str]) -> str:
    scripts = [_plotly(), *(_asset(name) for name in SCRIPTS)]
    styles = "\n".join(_asset(name) for name in STYLES)
    links = "".join(f'<li><a href="#{escape(id)}">{escape(name)}</a></li>' for id, name in contents)
    lines = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{content_policy(scripts)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>",
        f"<style>\n{styles}</style>",
        "</head>",
        "<body>",
        '<a class="skip" href="#main">Skip to the report</a>',
        '<div class="page">',
        f'<header class="masthead"><h1>{escape(title)}</h1>',
        '<button type="button" class="button" id="theme">Theme: auto</button></header>',
        '<div class="columns">',
        f'<nav class="contents" aria-label="Contents"><ol>{links}</ol></nav>',
        f'<main id="main" tabindex="-1">{"".join(body)}</main>',
        "</div></div>",
        *data,
        *(f"<script>{script}</script>" for script in scripts),
        "</body>",
        "</html>",
        "",
    ]
    return "\n".join(lines)


def content_policy(scripts: Sequence[str]) -> str:
    """Return the policy under which these scripts run and nothing else does; plotly sets styles as it draws."""
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")


def _asset(name: str) -> str:
    return files("arl.report").joinpath("assets", name).read_text(encoding="utf-8")


def _plotly() -> str:
    from plotly.offline import get_plotlyjs  # of 5 MB, so only a page reads it

    source: str = get_plotlyjs()
    return source
