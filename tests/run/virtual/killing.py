"""Runs that are killed with SIGKILL at their n-th point, in forks of one process that has imported everything.

A "point" is one turn of the event loop, or one file that is opened for writing, made, renamed or removed: so a run dies
between and inside steps, in a publication, and anywhere in the writing of a checkpoint.

    run_all({"recipe": file, "runs": [{"directory": …, "kills": [["loop", 17], …]}]}, pipe)

sends, for each run, what became of every attempt: the point it was killed at, or its end. An attempt after a kill
resumes the run; where no checkpoint had been finished, it starts anew.
"""

import io
import json
import os
import selectors
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from arl import clock
from arl.config.recipe_file import load_recipe
from arl.errors import InputError
from arl.metrics.console import ConsoleDisplay
from arl.metrics.summary import Summary
from arl.run.train import train
from arl.sync import publication_directory

WRITES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir"}


class Points:
    """Counts, and kills this process at the one asked for."""

    def __init__(self, kill: tuple[str, int] | None) -> None:
        self.counts = {"loop": 0, "file": 0}
        self.at_checkpoint: dict[str, int] | None = None  # counts when there was a checkpoint to resume from
        self._kill = kill
        sys.addaudithook(self._audit)
        select = clock._JumpingSelector.select

        def counted(selector: Any, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            self._pass("loop")
            return select(selector, timeout)

        clock._JumpingSelector.select = counted  # type: ignore[assignment,method-assign]

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        writing = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if (writing or event in WRITES) and not _is_byte_code(str(arguments[0])):
            self._pass("file")
        if event == "os.rename" and self.at_checkpoint is None and "/checkpoints/step_" in str(arguments[1]):
            self.at_checkpoint = dict(self.counts)

    def _pass(self, kind: str) -> None:
        self.counts[kind] += 1
        if self._kill == (kind, self.counts[kind]):
            os.kill(os.getpid(), signal.SIGKILL)


def _is_byte_code(path: str) -> bool:
    """Return whether Python caches a module there, which only the first of several equal runs does."""
    return ".pyc" in path or "__pycache__" in path


def attempt(recipe: Path, directory: str, kill: tuple[str, int] | None) -> dict[str, Any]:
    """Run or resume in this process."""
    memory = recipe.parent / "memory"  # its own, because what other runs have left in a shared one would be removed
    memory.mkdir(exist_ok=True)
    publication_directory.SHARED_MEMORY = memory
    points = Points(kill)
    loaded = load_recipe(recipe, [f"output.directory={directory}"])
    console = io.StringIO()
    display = ConsoleDisplay(Console(file=console, width=1000))
    try:
        summary = train(loaded, display, recipe if (Path(directory) / loaded.name).exists() else None)
    except InputError as error:
        if "is finished after" in str(error):
            summary = msgspec.json.decode(Path(directory, loaded.name, "summary.json").read_bytes(), type=Summary)
        elif "no intact checkpoint" in str(error):
            summary = train(loaded, display)
        else:
            raise
    return {
        "sha256": summary.weights_sha256,
        "directory": summary.directory,
        "points": points.counts,
        "at_checkpoint": points.at_checkpoint,
        "resumed": "resuming" in console.getvalue(),
    }


def forked(recipe: Path, directory: str, kill: tuple[str, int] | None) -> dict[str, Any]:
    """The same in a child; what it says, or the signal that ended it."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.write(writer, json.dumps(attempt(recipe, directory, kill)).encode())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return {"killed": kill}
    assert os.WEXITSTATUS(status) == 0, f"the attempt failed; see above ({directory}, {kill})"
    result: dict[str, Any] = json.loads(said)
    return result


def run_all(job: dict[str, Any], results: Connection) -> None:
    """See above."""
    for run in job["runs"]:
        kills = [*run["kills"], None]
        results.send([forked(Path(job["recipe"]), run["directory"], kill) for kill in kills])
