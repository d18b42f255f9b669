"""Define what a report is made of: sections of figures, tables and sentences.

The data side writes these parts; the page and the terminal show them. Parts hold no HTML.
"""

from typing import Any

from msgspec import Struct


class Figure(Struct, frozen=True, kw_only=True):
    """Hold one plot as plotly's JSON."""

    id: str
    title: str
    caption: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any] = {}


class Table(Struct, frozen=True, kw_only=True):
    """Hold one table of texts."""

    id: str
    title: str
    caption: str
    header: list[str]
    rows: list[list[str]]
    numeric: list[bool] = []  # of each column; empty: none is


class Prose(Struct, frozen=True, kw_only=True):
    """Hold plain sentences."""

    id: str
    lines: list[str]


Item = Figure | Table | Prose


class ReportSection(Struct, frozen=True, kw_only=True):
    """Answer one question of a reader."""

    id: str
    title: str
    items: list[Item]
    more: list[Item] = []  # what few readers need: the page folds it, the terminal leaves it out

    @property
    def all_items(self) -> list[Item]:
        """Return the items and those that are folded."""
        return [*self.items, *self.more]
