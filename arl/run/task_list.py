"""List the tasks that come with arl: what each poses, how many problems it has, and whether they are here."""

from arl.config.data_section import TASKS
from arl.tasks.base import Split, SplitSource
from arl.tasks.registry import task_class

SIDES: tuple[Split, ...] = ("training", "evaluation")
WIDTH = 18  # of the column of names


def render_tasks() -> str:
    """Write for each built-in task what it is, and for each side how many problems it has and where they are.

    Asks no hub, and downloads nothing.
    """
    lines = []
    for name in sorted(TASKS):
        kind = task_class(name)
        about = (kind.__doc__ or "").strip().partition("\n")[0]
        lines.append(f"{name:{WIDTH}}{about}")
        lines += [f"{'':{WIDTH}}{side:12}{_describe(kind.split_source(side))}" for side in SIDES]
    return "\n".join(lines) + "\n"


def _describe(source: SplitSource | None) -> str:
    if source is None:
        return "none: for evaluation alone"
    licence = f"  ({source.licence})" if source.licence else ""
    return f"{source.problems:>6,}  {source.where}{licence}"
