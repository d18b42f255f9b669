"""Write a report as one HTML page, with episodes over time and trajectories of its runs."""

import contextlib
import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

import msgspec

from arl.errors import InputError
from arl.report.arms import Arm
from arl.report.assemble import Report
from arl.report.page import render_page
from arl.report.swimlane import COLUMNS as OF_BARS
from arl.report.swimlane import draw_swimlanes
from arl.report.trajectory_source import TrajectorySource, open_source
from arl.report.viewer import COLUMNS as OF_VIEWER
from arl.report.viewer import choose_trajectories

MOST_SWIMLANES = 8
COLUMNS = (*OF_BARS, *OF_VIEWER)
FIRST_SEEDS = "Shown for the first seed of each arm"


def write_page(report: Report, path: Path) -> None:
    """Write the page to a file, which gets its name when it is complete.

    Raises:
        InputError: the file cannot be written.
    """
    page = _page(report)
    home = Path(os.path.realpath(path))  # a link stays one, and what it points to is written
    partial = home.with_name(f".{home.name}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("x", encoding="utf-8") as file:
            file.write(page)
        refuse_other_kinds(home)
        partial.replace(home)
    except OSError as error:
        raise InputError(f"--out {path}: cannot be written ({error.strerror}); name a file in a directory") from error
    finally:
        with contextlib.suppress(OSError):  # it has its name, or was never written
            partial.unlink()


def refuse_other_kinds(path: Path) -> None:
    """Refuse a path at which something lies that is no regular file: a page would take its place.

    Raises:
        InputError: it is a directory, a device or a FIFO, or cannot be looked at.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"--out {path}: cannot be written ({error.strerror}); name a file in a directory") from error
    if stat.S_ISDIR(mode):
        raise InputError(f"--out {path}: is a directory; name a file in it, like {path / 'report.html'}")
    if not stat.S_ISREG(mode):
        raise InputError(f"--out {path}: is no regular file, and a page would take its place; name another file")


def _page(report: Report) -> str:
    sources = [_first_seed(arm) for arm in report.arms]
    swimlanes = draw_swimlanes(sources[:MOST_SWIMLANES])
    viewer = choose_trajectories(sources)
    shown = f"{FIRST_SEEDS}{_at_most(len(sources))}."
    of_swimlanes = [shown] if swimlanes.figures else []
    of_viewer = [f"{FIRST_SEEDS}."] if viewer.trajectories else []
    swimlanes = msgspec.structs.replace(swimlanes, notes=of_swimlanes + _without_paths(swimlanes.notes, report))
    viewer = msgspec.structs.replace(viewer, notes=of_viewer + _without_paths(viewer.notes, report))
    return render_page(report.title, report.sections, swimlanes, viewer)


def _first_seed(arm: Arm) -> TrajectorySource:
    run = arm.runs[0]
    model = run.recipe.get("model.path")
    return open_source(
        run.directory,
        label=f"{arm.name}, seed {run.seed}",
        columns=COLUMNS,
        arm=arm.number,
        model=Path(model) if isinstance(model, str) else None,
    )


def _at_most(num_arms: int) -> str:
    return "" if num_arms <= MOST_SWIMLANES else f", of the first {MOST_SWIMLANES} of {num_arms} arms"


def _without_paths(notes: Iterable[str], report: Report) -> list[str]:
    """Call runs by their names, because where they lie on a machine is nobody's business."""
    named = []
    for note in notes:
        text = note
        for run in report.runs:
            text = text.replace(str(run.directory), run.name)
        named.append(text)
    return named
