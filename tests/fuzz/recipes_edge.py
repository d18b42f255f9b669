"""Try what `arl train --dry-run` and `arl sweep --dry-run` read: recipes, sweep files, and the options beside them.

    a file of recipes/ ─► its bytes or values damaged, or damaged options ─► the command, in this process ─► exit code

Models and problems that a recipe downloads are not at hand; such recipes are tried as far as that.
"""

import contextlib
import functools
import io
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from arl.cli import app
from arl.config.leaves import leaves
from arl.config.recipe_file import load_recipe
from arl.config.yaml_loader import load_yaml
from arl.errors import InputError
from tests.fuzz.damage import MOST_DAMAGES, damage_bytes, damage_value, hostile_value
from tests.fuzz.trials import Draw, Edge, Trial

RECIPES = Path(__file__).parents[2] / "recipes"
SHOWN = 500  # characters of an input
QUICK = ("quickstart.yaml", "quickstart-virtual.yaml", "quickstart-sglang.yaml")  # of tiny models
WORDS = (
    "ppo gspo rloo batch_norm sglang ray slurm virtual collocated long_tail gsm8k auto true null {} [] "
    "no_such_module:x arl:x arl.errors:InputError.x ..x:y os:path json:loads builtins:dict arl.run:evaluation "
    "arl.cli:app __main__:x.y a:b:c 1e-6 1_000 0x10 -1 1e300 .inf .nan 2001-12-32 !!python/name:os.system &a *a "
    "[1,2 {a:&a[*a]} /dev/stdin {dist:/dev/zero} \ufeff"
)
TEXTS = (
    "!!int ''",
    "{a: &a [*a]}",
    "{a: 1, a: 2}",
    "{<<: {a: 1}}",
    "{dist: /dev/zero}",
    "{trace: /proc/self}",
    "a\n---\nb",
    "a b:c",
    "'\\",
    '"\\ud800"',
    '"\\UFFFFFFFF"',
    "9" * 5_000,
    "[" * 3_000,
    "- " * 3_000,
    "\t",
)
HOSTILE = (*WORDS.split(), *TEXTS)
COUNTS = (*range(10), 12, 16, 64, 100, 512, 1_000, 4_096, 10_000, 10**5, 10**6, 10**7, 10**8, 10**9)
FEW_PROBLEMS = r"data: {task: \1, options: {size: 300}}"
Draws = Callable[[Random], tuple[str, list[str]]]


def run_command(arguments: list[str]) -> None:
    """Run `arl` with these arguments in this process.

    Raises:
        InputError: it refused them, with exit code 2; holds what it wrote.
    """
    out = io.StringIO()
    error = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            app(arguments, prog_name="arl")
        except SystemExit as ended:
            code = ended.code
    if code:
        assert code == 2, f"exit code {code}: {error.getvalue()}"
        raise InputError(error.getvalue())


@contextlib.contextmanager
def prepare(folder: Path, draws: Callable[[Path], Draws]) -> Iterator[Draw]:
    """Copy the recipes, go there, and yield what draws arguments of commands."""
    copied = folder / "recipes"
    shutil.copytree(RECIPES, copied)
    for file in copied.rglob("*.yaml"):  # with few problems, so that a plan takes little time
        file.write_text(re.sub(r"data: \{task: (running_checksum|long_tail)\}", FEW_PROBLEMS, file.read_text()))
    draw_arguments = draws(copied)

    def draw(random: Random) -> Trial:
        shown, arguments = draw_arguments(random)
        return Trial(shown[:SHOWN], lambda: run_command(arguments))

    before = Path.cwd()
    os.chdir(folder)
    try:
        for name in QUICK[:2]:
            run_command(["train", str(copied / name), "--dry-run"])  # imports whatever is needed, which takes seconds
        yield draw
    finally:
        os.chdir(before)


def _draw_recipes(folder: Path) -> Draws:
    """Damage the bytes or the values of any recipe, also of one that gives every field."""
    files = _recipes(folder)
    complete = {file: load_recipe(file).model_dump(mode="json") for file in files}

    def draw(random: Random) -> tuple[str, list[str]]:
        file = random.choice(files if random.random() < 0.5 else [folder / name for name in QUICK])
        data = _damaged(random, file.read_bytes(), complete[file])
        return repr(data), ["train", str(_write_beside(file, data)), "--dry-run", *_gpus(random)]

    return draw


def _draw_settings(folder: Path) -> Draws:
    """Give hostile values to fields, and hostile words to options."""
    names = [name for name in QUICK if "sglang" not in name]
    fields = dict(leaves(load_recipe(folder / QUICK[0]).model_dump(mode="json")))

    def draw(random: Random) -> tuple[str, list[str]]:
        settings: list[str] = []
        for _ in range(random.choice((1, 1, 1, MOST_DAMAGES))):
            settings += ["--set", _setting(random, fields)]
        arguments = ["train", str(folder / random.choice(names)), "--dry-run", *settings]
        if random.random() < 0.2:
            option = random.choice(
                ("--nodes", "--launcher", "--gpus", "--time", "--sbatch", "--address", "--partition")
            )
            arguments += [option, _argument(random)]
        return repr(arguments[3:]), arguments

    return draw


def _draw_sweeps(folder: Path) -> Draws:
    """Damage a sweep file, or give hostile axes."""
    files = [file for file in sorted((folder / "study").glob("*.yaml")) if _is_sweep(file)]
    fields = dict(leaves(load_recipe(folder / QUICK[1]).model_dump(mode="json")))
    small = folder / "study" / "small.yaml"
    small.write_text(
        "recipe: ../quickstart-virtual.yaml\nset: {train.steps: 9}\narms:\n  a: {objective.kind: ppo}\n  b: {}\n"
        "axes:\n  - rollout.staleness: [0, 4]\nexclude: [{arm: a, rollout.staleness: 0}]\nseeds: [0, 1]\n"
    )

    def draw(random: Random) -> tuple[str, list[str]]:
        file = random.choice([*files, small, small, small, small])
        data = _damaged(random, file.read_bytes(), load_yaml(file.read_text()))
        arguments = ["sweep", str(_write_beside(file, data)), "--dry-run"]
        if random.random() < 0.4:
            arguments[1] = str(folder / QUICK[1])
            option = random.choice(("--axis", "--axis", "--paired", "--set"))
            arguments += [option, _setting(random, fields)]
            option = random.choice(("--seeds", "--jobs", "--name", "--axis"))
            arguments += [option, _argument(random)]
            data = b""
        return repr((data, arguments[3:])), arguments

    return draw


def _recipes(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.rglob("*.yaml")) if not _is_sweep(file)]


def _is_sweep(file: Path) -> bool:
    return "recipe" in load_yaml(file.read_text())


def _damaged(random: Random, data: bytes, values: Any) -> bytes:
    """Damage the bytes of a file, or its values, or put words of the YAML kind in the place of one value."""
    kind = random.random()
    if kind < 0.3:
        return damage_bytes(random, data)
    if kind < 0.8:
        return _write_value(damage_value(random, values)).encode(errors="surrogatepass")
    lines = data.decode().splitlines()
    number = random.randrange(len(lines))
    name, colon, _ = lines[number].partition(":")
    lines[number] = f"{name}{colon} {random.choice(HOSTILE)}"
    return "\n".join(lines).encode(errors="surrogatepass")


def _write_beside(file: Path, data: bytes) -> Path:
    """Write beside a file, whose content may name other files by their way from there."""
    damaged = file.with_name("damaged.yaml")
    damaged.write_bytes(data)
    return damaged


def _gpus(random: Random) -> list[str]:
    return random.choice(([], [], ["--gpus", "8xH100"], ["--gpus", random.choice(HOSTILE)]))


def _setting(random: Random, fields: dict[str, Any]) -> str:
    """Give a field a hostile value, or one that is near to its own."""
    field, value = random.choice(list(fields.items()))
    kind = random.random()
    if kind < 0.3:
        return _as_argument(f"{field}={_write_value(damage_value(random, value))}")
    if kind < 0.6 and (value is None or isinstance(value, int | float)):
        return f"{field}={random.choice(COUNTS)}"
    if random.random() < 0.1:
        field = random.choice(
            (field[:-1], f"{field}.x", field.upper(), "", ".", "a." * 2_000, "\ud800", field.partition(".")[0])
        )
    return _as_argument(f"{field}={_argument(random)}" if random.random() < 0.97 else field)


def _argument(random: Random) -> str:
    if random.random() < 0.5:
        return _as_argument(random.choice(HOSTILE))
    return _as_argument(_write_value(hostile_value(random)))


def _write_value(value: Any) -> str:
    """Write a value as YAML on one line, whatever it is; `dump_yaml` writes only what can be read again."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_write_value(name)}: {_write_value(inner)}' for name, inner in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_write_value, value))}]"
    if isinstance(value, int) and not isinstance(value, bool):
        return hex(value) if abs(value) > 2**64 else str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: ".inf", -math.inf: "-.inf"}.get(value, ".nan")
    return json.dumps(value)


def _as_argument(text: str) -> str:
    """Leave out what no argument of a process can hold."""
    return text.replace("\0", "")


RECIPE_EDGE = Edge(functools.partial(prepare, draws=_draw_recipes), trials=100)
SETTINGS_EDGE = Edge(functools.partial(prepare, draws=_draw_settings), trials=100)
SWEEP_EDGE = Edge(functools.partial(prepare, draws=_draw_sweeps), trials=30)
