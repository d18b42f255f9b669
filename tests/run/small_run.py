"""Make a small run with three checkpoints, and remember what lies in its directory."""

import os
import stat
from pathlib import Path

from rich.console import Console

from arl.config.recipe_file import load_recipe
from arl.metrics.console import ConsoleDisplay
from arl.run.train import train

RUN = "small"
RECIPE = f"""\
name: {RUN}
world: virtual
model:
  tiny: {{hidden_size: 16, layers: 1, heads: 2, intermediate_size: 16, context: 64}}
data: {{task: running_checksum, options: {{size: 100}}}}
reward: {{function: "tests.run.virtual.test_virtual:ones"}}
rollout: {{problems_per_step: 2, group_size: 2, staleness: 2, max_new_tokens: 8}}
train: {{steps: 6, minibatches: 1}}
engine: {{slots: 4, stream_interval: 4}}
output: {{checkpoint_every: 2, keep_checkpoints: 9}}
eval: {{problems: 0}}
"""


def make_run(folder: Path) -> Path:
    """Make the run `small` in a folder, as if it had been killed at its end; return its recipe."""
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE)
    with open(os.devnull, "w") as nowhere:
        train(load_recipe(recipe, [f"output.directory={folder}"]), ConsoleDisplay(Console(file=nowhere)))
    (folder / RUN / "summary.json").unlink()
    return recipe


def snapshot(directory: Path) -> dict[str, bytes | str]:
    """Map whatever lies below a directory to the content of a file, or to the kind of what is none."""
    found: dict[str, bytes | str] = {}
    if directory.is_symlink() or not directory.is_dir():
        return found
    for path in sorted(directory.rglob("*")):
        mode = path.lstat().st_mode
        is_readable = stat.S_ISREG(mode) and os.access(path, os.R_OK)
        found[str(path.relative_to(directory))] = path.read_bytes() if is_readable else oct(stat.S_IFMT(mode))
    return found
