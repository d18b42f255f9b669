"""`arl doctor`: report what this machine and its environments offer a run, and the remedy for what they lack."""

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata

from arl.config.engine_section import EngineConfig
from arl.config.recipe import Recipe
from arl.engine.backend import BUILT_IN, Installation, find_backend
from arl.errors import InputError
from arl.launch.devices import visible_cores, visible_devices
from arl.run.checks import Finding, gpu_findings
from arl.run.preflight import preflight
from arl.run.submit import check_submission, is_submitted
from arl.sync.publication_directory import SHARED_MEMORY

GIGABYTE = 1e9


def examine(recipe: Recipe | None, python: str | None) -> Iterator[Finding]:
    """Examine this environment, engine backends, and whether the recipe can start.

    Args:
        recipe: its backend is probed, and then everything that `arl train` would refuse before the start
        python: an interpreter to look for backends in, instead of the recipe's; each built-in backend that has an
            interpreter of its own is probed

    Without both, the built-in backends with an interpreter of their own are examined where they are there; most recipes
    need none of them, so that nothing is missing.
    """
    yield from _environment()
    visible = _visible()
    yield visible if isinstance(visible, Finding) else _devices(visible)
    yield _memory()
    is_asked_for = recipe is not None or python is not None
    others = []
    are_installed = True
    for config in _engines(recipe, python):
        found = _backend(config)
        if isinstance(found, Finding):
            are_installed = False
            yield found if is_asked_for else _not_needed(config)
            continue
        yield _installed(config, found)
        if found.capabilities.own_interpreter:
            others.append(found)
    yield from gpu_findings(visible if isinstance(visible, tuple) else (), others)
    if recipe is not None and are_installed:  # else the recipe's check would only repeat it
        yield _startable(recipe)


def _engines(recipe: Recipe | None, python: str | None) -> list[EngineConfig]:
    """List the engine sections whose backends are to be probed."""
    engines = [] if recipe is None else [recipe.engine]
    if recipe is not None and python is None:
        return engines
    kinds = [kind for kind in BUILT_IN if find_backend(kind).capabilities.own_interpreter]
    others = [engine for engine in engines if engine.kind not in kinds]
    own = [EngineConfig(kind=kind, python=python) for kind in kinds]
    return others + own


def _environment() -> Iterator[Finding]:
    linux = sys.platform == "linux"
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    yield Finding(linux, system, "" if linux else "Only Linux is supported: elsewhere processes outlive a killed run")
    for name in ("torch", "transformers"):
        try:
            yield Finding(True, f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            yield Finding(False, name, "pip install -e . in a clone of arl")


def _visible() -> tuple[str, ...] | Finding:
    """Return the GPUs that torch sees, or why it cannot use those of this machine."""
    try:
        return visible_devices()
    except InputError as error:
        return Finding(False, "GPUs", str(error))


def _devices(gpus: tuple[str, ...]) -> Finding:
    names = f" ({', '.join(gpus)})" if gpus else ""
    return Finding(True, f"{visible_cores()} CPU cores, {len(gpus)} GPUs{names}")


def _memory() -> Finding:
    """Look at the memory-backed file system through which weights are published; a disk does instead, slowly."""
    if not os.path.isdir(SHARED_MEMORY) or not os.access(SHARED_MEMORY, os.W_OK):
        return Finding(True, f"no {SHARED_MEMORY}: weights are published on disk, in the run directory")
    free = shutil.disk_usage(SHARED_MEMORY).free / GIGABYTE
    return Finding(
        True, f"{free:.1f} GB free in {SHARED_MEMORY}, for weights on their way to engines; beyond it, on disk"
    )


def _backend(config: EngineConfig) -> Installation | Finding:
    """Return the backend that is installed, or what it lacks."""
    try:
        return find_backend(config.kind).probe(config)
    except InputError as error:
        return Finding(False, f"engine {config.kind}: {error}")


def _installed(config: EngineConfig, found: Installation) -> Finding:
    note = f"; {found.note}" if found.note else ""
    return Finding(True, f"engine {config.kind}: {found}{note}")


def _not_needed(config: EngineConfig) -> Finding:
    where = "`arl doctor --python PYTHON` looks for it in another interpreter, and says how to install it"
    return Finding(True, f"no engine {config.kind}: only recipes with engine.kind {config.kind} need it; {where}")


def _startable(recipe: Recipe) -> Finding:
    try:
        if is_submitted(recipe):
            return Finding(True, f"recipe {recipe.name}: it can be submitted to Slurm; {check_submission(recipe)}")
        preflight(recipe)
    except InputError as error:
        return Finding(False, f"recipe {recipe.name}: {error}")
    return Finding(True, f"recipe {recipe.name}: it can start")
