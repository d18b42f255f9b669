"""Write the parts of a report as HTML. Figures are empty boxes here, which a script fills with plots."""

import re
from collections.abc import Sequence
from html import escape
from itertools import groupby

from arl.report.parts import Figure, Item, Prose, ReportSection, Table
from arl.report.swimlane import EXPLANATION, Swimlanes
from arl.report.viewer import ViewerData

LONG_TEXT = 40  # characters, from which a cell wraps


def section_html(section: ReportSection) -> str:
    """Return a section with its heading; what few readers need is folded at its end."""
    content = _items_html(section.items)
    if section.more:
        content += (
            f'<details class="more"><summary>{_summary(section.more)}</summary>{_items_html(section.more)}</details>'
        )
    return _section(section.id, section.title, content)


def _items_html(items: Sequence[Item]) -> str:
    """Return items below each other, neighboring figures side by side."""
    content = []
    for are_figures, group in groupby(items, key=lambda item: isinstance(item, Figure)):
        own = [_item_html(item) for item in group]
        columns = {1: "", 3: " triples"}.get(len(own), " pairs")
        text = "".join(own)
        content.append(f'<div class="figures{columns}">{text}</div>' if are_figures else text)
    return "".join(content)


def _summary(items: Sequence[Item]) -> str:
    """Say what is folded, as in `More: 2 tables, 6 figures`."""
    tables = sum(isinstance(item, Table) for item in items)
    figures = sum(isinstance(item, Figure) for item in items)
    counts = [_count(tables, "table"), _count(figures, "figure")]
    return f"More: {', '.join(count for count in counts if count)}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number > 1 else ''}" if number else ""


def _sentence(text: str) -> str:
    """Escape a text, whose `code` is set as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def _section(id: str, title: str, content: str) -> str:
    id = escape(id)
    return (
        f'<section id="{id}" aria-labelledby="{id}-title"><h2 id="{id}-title">{escape(title)}</h2>{content}</section>'
    )


def _item_html(item: Item) -> str:
    if isinstance(item, Figure):
        return figure_html(item)
    if isinstance(item, Table):
        return table_html(item)
    return prose_html(item)


def prose_html(prose: Prose) -> str:
    """Return sentences as paragraphs."""
    paragraphs = "".join(f"<p>{_sentence(line)}</p>" for line in prose.lines)
    return f'<div class="prose" id="{escape(prose.id)}">{paragraphs}</div>'


def figure_html(figure: Figure) -> str:
    """Return a figure without its plot; title and caption describe the plot to those who do not see it."""
    id = escape(figure.id)
    return (
        f'<figure id="{id}" data-figure="{id}" aria-labelledby="{id}-title">'
        f'<h3 id="{id}-title">{escape(figure.title)}</h3>'
        f'<figcaption id="{id}-caption">{_sentence(figure.caption)}</figcaption>'
        f'<ul class="legend" id="{id}-legend" aria-label="Lines of the figure"></ul>'
        f'<div class="figure-plot" id="{id}-plot" role="img" aria-labelledby="{id}-title {id}-caption"></div>'
        "</figure>"
    )


def table_html(table: Table) -> str:
    """Return a table whose header cells sort it, in a box that scrolls by itself."""
    id = escape(table.id)
    numeric = table.numeric or [False] * len(table.header)
    header = "".join(map(_header_cell, table.header, numeric))
    rows = "".join(f"<tr>{''.join(map(_cell, row, numeric))}</tr>" for row in table.rows)
    return (
        f'<div class="table" id="{id}"><h3 id="{id}-title">{escape(table.title)}</h3>'
        f'<p class="table-caption" id="{id}-caption">{_sentence(table.caption)}</p>'
        f'<div class="scroll" role="region" tabindex="0" aria-labelledby="{id}-title">'
        f'<table aria-labelledby="{id}-title" aria-describedby="{id}-caption">'
        f"<thead><tr>{header}</tr></thead><tbody>{rows}</tbody></table></div></div>"
    )


def _header_cell(text: str, is_numeric: bool) -> str:
    kind = ' class="number"' if is_numeric else ""
    return f'<th scope="col"{kind}><button type="button">{escape(text)}</button></th>'


def _cell(text: str, is_numeric: bool) -> str:
    if is_numeric:
        return f'<td class="number">{escape(text)}</td>'
    kind = ' class="long"' if len(text) > LONG_TEXT else ""
    return f"<td{kind}>{escape(text)}</td>"


def notes_html(notes: Sequence[str]) -> str:
    """Return notes as a list; nothing if there are none."""
    if not notes:
        return ""
    return f'<ul class="notes">{"".join(f"<li>{escape(note)}</li>" for note in notes)}</ul>'


def swimlane_html(id: str, title: str, swimlanes: Swimlanes) -> str:
    """Return one box for each run, of which the first is open."""
    boxes = []
    for number, figure in enumerate(swimlanes.figures):
        state = " open" if number == 0 else ""
        summary = escape(figure.title)
        boxes.append(f'<details class="run"{state}><summary>{summary}</summary>{figure_html(figure)}</details>')
    explanation = f"<p>{_sentence(EXPLANATION)}</p>" if boxes else ""
    return _section(id, title, explanation + "".join(boxes) + notes_html(swimlanes.notes))


def viewer_html(id: str, title: str, viewer: ViewerData, skeleton: str) -> str:
    """Return the viewer without its trajectories, which a script fills in."""
    content = skeleton if viewer.trajectories else "<p>There is no trajectory to show.</p>"
    return _section(id, title, notes_html(viewer.notes) + content)
