"""Define what a report is made of: sections of figures, tables and sentences.

The data side writes these parts; the page and the terminal show them. Parts hold no color of a theme and no HTML.
"""

from typing import Any

from msgspec import Struct


class Figure(Struct, frozen=True, kw_only=True, tag="figure"):
    """Hold one plot as plotly's JSON.

    A trace that belongs to an arm has the color "arm:<k>", k being the arm's number. One part of a whole has the
    color "part:<k>". The page replaces both by colors of its theme, in "line", "marker" and "fillcolor" alike.
    """

    id: str
    title: str
    caption: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any] = {}


class Table(Struct, frozen=True, kw_only=True, tag="table"):
    """Hold one table of texts."""

    id: str
    title: str
    caption: str
    header: list[str]
    rows: list[list[str]]
    numeric: list[bool] = []  # of each column; empty: none is


class Prose(Struct, frozen=True, kw_only=True, tag="prose"):
    """Hold plain sentences."""

    id: str
    lines: list[str]


Item = Figure | Table | Prose


class ReportSection(Struct, frozen=True, kw_only=True, tag="section"):
    """Answer one question of a reader."""

    id: str
    title: str
    items: list[Item]


Section = ReportSection
