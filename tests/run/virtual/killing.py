"""Runs that are killed with SIGKILL at their n-th point, in forks of one process that has imported everything.

A "point" is one turn of the event loop, or one file that is opened for writing, made, renamed or removed: so a run dies
between and inside steps, in a publication, and anywhere in the writing of a checkpoint.
"""

import io
import os
import selectors
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from rich.console import Console

from arl import clock
from arl.config.recipe_file import load_recipe
from arl.errors import InputError
from arl.metrics.console import ConsoleDisplay
from arl.metrics.summary import Summary
from arl.run.train import train
from arl.sync import publication_directory
from tests.forks import forks


class Ended(NamedTuple):
    """What became of an attempt that was not killed."""

    summary: Summary
    points: dict[str, int]  # by kind
    at_checkpoint: dict[str, int] | None  # those when there was a checkpoint to resume from
    is_resumed: bool


WRITES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir"}


class Points:
    """Counts, and kills this process at the one asked for."""

    def __init__(self, kill: tuple[str, int] | None) -> None:
        self.counts = {"loop": 0, "file": 0}
        self.at_checkpoint: dict[str, int] | None = None
        self._kill = kill
        sys.addaudithook(self._audit)
        select = clock._JumpingSelector.select

        def counted(selector: Any, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            self._pass("loop")
            return select(selector, timeout)

        clock._JumpingSelector.select = counted  # type: ignore[assignment,method-assign]

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        writing = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        is_byte_code = ".pyc" in str(arguments) or "__pycache__" in str(arguments)  # only the first of equal runs
        if (writing or event in WRITES) and not is_byte_code:
            self._pass("file")
        if event == "os.rename" and self.at_checkpoint is None and "/checkpoints/step_" in str(arguments[1]):
            self.at_checkpoint = dict(self.counts)

    def _pass(self, kind: str) -> None:
        self.counts[kind] += 1
        if self._kill == (kind, self.counts[kind]):
            os.kill(os.getpid(), signal.SIGKILL)


def attempt(recipe: Path, directory: Path, kill: tuple[str, int] | None, result: Connection) -> None:
    """Run the recipe, or resume its run; where no checkpoint had been finished, it starts anew. Send how it ended."""
    memory = recipe.parent / "memory"  # its own, because what other runs have left in a shared one would be removed
    memory.mkdir(exist_ok=True)
    publication_directory.SHARED_MEMORY = memory
    points = Points(kill)
    loaded = load_recipe(recipe, [f"output.directory={directory}"])
    console = io.StringIO()
    display = ConsoleDisplay(Console(file=console, width=1000))
    try:
        summary = train(loaded, display, recipe if (directory / loaded.name).exists() else None)
    except InputError as error:
        if "is finished after" in str(error):
            summary = msgspec.json.decode((directory / loaded.name / "summary.json").read_bytes(), type=Summary)
        elif "no intact checkpoint" in str(error):
            summary = train(loaded, display)
        else:
            raise
    result.send(Ended(summary, points.counts, points.at_checkpoint, "resuming" in console.getvalue()))


def in_fork(recipe: Path, directory: Path, kill: tuple[str, int] | None = None) -> Ended | None:
    """Attempt it in a child. None: it was killed."""
    reader, writer = forks.Pipe(duplex=False)
    process = forks.Process(target=attempt, args=(recipe, directory, kill, writer))
    process.start()
    writer.close()
    try:
        ended: Ended | None = reader.recv()
    except EOFError:
        ended = None
    process.join()
    assert process.exitcode == (-signal.SIGKILL if ended is None else 0), f"it failed; see above ({directory}, {kill})"
    return ended
