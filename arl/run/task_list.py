"""List the tasks that come with arl: what each poses, how many problems it has, and whether they are here."""

from collections.abc import Iterator

from msgspec import Struct

from arl.config.data_section import TASKS
from arl.tasks.base import Split, SplitSource
from arl.tasks.registry import task_class

SIDES: tuple[Split, ...] = ("training", "evaluation")
WIDTH = 18  # of the column of names


class TaskEntry(Struct, frozen=True):
    """Describe one task."""

    name: str
    about: str  # the first line of its docstring
    sides: dict[Split, SplitSource | None]  # None: the task has no such side


def task_entries() -> list[TaskEntry]:
    """Describe every built-in task, in the order of their names. Asks no hub, and downloads nothing."""
    return [_entry(name) for name in sorted(TASKS)]


def render_tasks(entries: list[TaskEntry]) -> str:
    """Write the list: for each task what it is, and for each side how many problems it has and where they are."""
    return "\n".join(line for entry in entries for line in _lines(entry)) + "\n"


def _entry(name: str) -> TaskEntry:
    kind = task_class(name)
    about, *_ = (kind.__doc__ or "").strip().splitlines()
    return TaskEntry(name, about, {side: kind.split_source(side) for side in SIDES})


def _lines(entry: TaskEntry) -> Iterator[str]:
    yield f"{entry.name:{WIDTH}}{entry.about}"
    for side in SIDES:
        source = entry.sides[side]
        yield f"{'':{WIDTH}}{side:12}{_describe(source)}"


def _describe(source: SplitSource | None) -> str:
    if source is None:
        return "none: for evaluation alone"
    licence = f"  ({source.licence})" if source.licence else ""
    return f"{source.problems:>6,}  {source.where}{licence}"
