"""`arl doctor`: what this machine and its environments offer a run, and what to do about what they lack."""

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata

from msgspec import Struct

from arl.config.recipe import Recipe
from arl.engine.sglang.server_command import TESTED, look_at
from arl.errors import InputError
from arl.launch.devices import visible_cores, visible_devices
from arl.run.preflight import preflight
from arl.sync.publication_directory import MEMORY

GIGABYTE = 1e9


class Finding(Struct, frozen=True):
    good: bool
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{'ok     ' if self.good else 'MISSING'}  {self.what}{self.remedy and chr(10) + self.remedy}"


def examine(recipe: Recipe | None, python: str | None) -> Iterator[Finding]:
    """This environment; SGLang's, if `python` names one or the recipe needs it; whether the recipe can start."""
    yield from _environment()
    yield _devices()
    yield _memory()
    needed = recipe is not None and recipe.engine.kind == "sglang"
    if python is not None or needed:
        found = _sglang(python or (recipe.engine.python if recipe else None))
        yield found
        if needed and not found.good:
            return  # the recipe would only say so again
    if recipe is not None:
        yield _startable(recipe)


def _environment() -> Iterator[Finding]:
    linux = sys.platform == "linux"
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    yield Finding(linux, system, "" if linux else "Linux alone is supported: processes would outlive a killed run")
    for name in ("torch", "transformers"):
        try:
            yield Finding(True, f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            yield Finding(False, name, "pip install -e . in a clone of arl")


def _devices() -> Finding:
    cores, gpus = visible_cores(), visible_devices()
    return Finding(True, f"{cores} CPU cores, {len(gpus)} GPUs{' (' + ', '.join(gpus) + ')' if gpus else ''}")


def _memory() -> Finding:
    """Where weights are handed over; a disk does instead, slowly."""
    if not MEMORY.is_dir() or not os.access(MEMORY, os.W_OK):
        return Finding(True, f"no {MEMORY}: weights are handed over on disk, in the run directory")
    free = shutil.disk_usage(MEMORY).free / GIGABYTE
    return Finding(True, f"{free:.1f} GB free in {MEMORY}, for weights on their way to engines; beyond it, on disk")


def _startable(recipe: Recipe) -> Finding:
    try:
        preflight(recipe)
    except InputError as error:
        return Finding(False, f"recipe {recipe.name}: {error}")
    return Finding(True, f"recipe {recipe.name}: nothing speaks against starting it")


def _sglang(python: str | None) -> Finding:
    try:
        found = look_at(python)
    except InputError as error:
        return Finding(False, f"SGLang: {error}")
    tested = "" if found.version == TESTED else f"; arl is tested with {TESTED}"
    return Finding(True, f"SGLang {found.version} in {found.path}{tested}")
