"""Make a small run with three checkpoints, and know which of them are as they were written."""

import os
import stat
from pathlib import Path

from rich.console import Console

from arl.config.recipe_file import load_recipe
from arl.metrics.console import ConsoleDisplay
from arl.run.checkpoint_state import complete_files, growing_files, load_state
from arl.run.train import train

RECIPE = """\
name: small
world: virtual
model:
  tiny: {hidden_size: 16, layers: 1, heads: 2, intermediate_size: 16, context: 64}
data: {task: running_checksum, options: {size: 100}}
reward: {function: "tests.run.virtual.test_virtual:ones"}
rollout: {problems_per_step: 2, group_size: 2, staleness: 2, max_new_tokens: 8}
train: {steps: 6, minibatches: 1}
engine: {slots: 4, stream_interval: 4}
output: {checkpoint_every: 2, keep_checkpoints: 9}
eval: {problems: 0}
"""
STEPS = (2, 4, 6)
RUN = "small"


def make_run(folder: Path) -> Path:
    """Make the run `small` in a folder, as if it had been killed at its end; return its recipe."""
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE)
    with open(os.devnull, "w") as nowhere:
        train(load_recipe(recipe, [f"output.directory={folder}"]), ConsoleDisplay(Console(file=nowhere)))
    (folder / RUN / "summary.json").unlink()
    return recipe


class WholeRun:
    """Remember a run, so that it is known which checkpoints of a damaged copy nobody touched."""

    def __init__(self, run: Path) -> None:
        self._checkpoints = {step: snapshot(run / "checkpoints" / f"step_{step}") for step in STEPS}
        self._beginnings: dict[int, dict[str, bytes]] = {}
        self._complete: dict[int, dict[str, bytes]] = {}
        for step in STEPS:
            recorder = load_state(run / "checkpoints" / f"step_{step}").recorder
            growing = growing_files(recorder).items()
            self._beginnings[step] = {name: (run / name).read_bytes()[:size] for name, size in growing}
            self._complete[step] = {name: (run / name).read_bytes() for name in complete_files(recorder)}

    def untouched(self, run: Path) -> list[int]:
        """Return the steps of the checkpoints that are whole, with all that they count on."""
        return [step for step in STEPS if self._is_whole(run, step)]

    def _is_whole(self, run: Path, step: int) -> bool:
        if snapshot(run / "checkpoints" / f"step_{step}") != self._checkpoints[step]:
            return False
        has_beginnings = all(
            own_content(run, name)[: len(expected)] == expected for name, expected in self._beginnings[step].items()
        )
        return has_beginnings and all(own_content(run, name) == is_ for name, is_ in self._complete[step].items())


def snapshot(directory: Path) -> dict[str, bytes | str]:
    """Map whatever lies below a directory to the content of a file, or to the kind of what is none."""
    found: dict[str, bytes | str] = {}
    if directory.is_symlink() or not directory.is_dir():
        return found
    for path in sorted(directory.rglob("*")):
        mode = path.lstat().st_mode
        found[str(path.relative_to(directory))] = content(path) if stat.S_ISREG(mode) else oct(stat.S_IFMT(mode))
    return found


def own_content(run: Path, name: str) -> bytes:
    """Return the content of a file of a run; empty, where it is a link, or lies behind one."""
    file = run / name
    places = [file, *file.parents[: name.count("/")]]
    return b"" if any(place.is_symlink() for place in places) else content(file)


def content(path: Path) -> bytes:
    """Return the content of a file; empty, where there is none that can be read."""
    return path.read_bytes() if path.is_file() and os.access(path, os.R_OK) else b""
