"""`arl doctor`: report what this machine and its environments offer a run, and the remedy for what they lack."""

import platform
import sys
from collections.abc import Iterator
from importlib import metadata

from arl.config.engine_section import EngineConfig
from arl.config.recipe import Recipe
from arl.config.sandbox_section import SandboxSection
from arl.engine.backend import BUILT_IN, find_backend
from arl.errors import InputError, SandboxError
from arl.launch.devices import visible_cores, visible_devices
from arl.run.checks import Finding, gpu_findings
from arl.run.preflight import preflight
from arl.run.submit import check_submission, is_submitted
from arl.sandbox.current import check_sandbox


def examine(recipe: Recipe | None, python: str | None) -> Iterator[Finding]:
    """Examine this environment, engine backends, and whether the recipe can start.

    Args:
        recipe: its backend is probed, and then everything that `arl train` would refuse before the start
        python: an interpreter to look for backends in, instead of the recipe's; each built-in backend that has an
            interpreter of its own is probed

    Without both, the built-in backends with an interpreter of their own are examined where they are there. Recipes for
    CPUs need none of them, so that nothing is missing; on GPUs they are.
    """
    linux = sys.platform == "linux"
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    yield Finding(linux, system, "Only Linux is supported: elsewhere processes outlive a killed run")
    yield Finding(True, ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "transformers")))
    visible: tuple[str, ...] = ()
    try:
        visible = visible_devices()
        yield Finding(True, f"{visible_cores()} CPU cores, {len(visible)} GPUs {', '.join(visible)}".rstrip())
    except InputError as error:
        yield Finding(False, "GPUs", str(error))
    is_asked_for = recipe is not None or python is not None or bool(visible)  # recipes for GPUs need one
    installed = []
    for config in _engines(recipe, python):
        try:
            found = find_backend(config.kind).probe(config)
        except InputError as error:
            elsewhere = "not in this interpreter; `arl doctor --python PYTHON` looks elsewhere"
            yield Finding(not is_asked_for, f"engine {config.kind}: {error if is_asked_for else elsewhere}")
            recipe = None  # its check would only repeat this
            continue
        yield Finding(True, f"engine {config.kind}: {found}{f'; {found.note}' if found.note else ''}")
        if found.capabilities.own_interpreter:
            installed.append(found)
    yield from gpu_findings(visible, installed)
    if recipe is None:
        yield _sandbox_finding()
        return
    try:
        if is_submitted(recipe):
            check_submission(recipe)
            yield Finding(True, f"recipe {recipe.name}: it can be submitted to Slurm, and its job looks at the nodes")
        else:
            preflight(recipe)
            yield Finding(True, f"recipe {recipe.name}: it can start")
    except InputError as error:
        yield Finding(False, f"recipe {recipe.name}: {error}")


def _sandbox_finding() -> Finding:
    """Say whether programs of a model can be isolated here. Only some recipes need it, so nothing is missing."""
    try:
        check_sandbox(SandboxSection())
    except SandboxError as error:
        return Finding(True, f"no sandbox: {error}")
    return Finding(True, "sandbox bubblewrap: it isolates programs")


def _engines(recipe: Recipe | None, python: str | None) -> list[EngineConfig]:
    """List the engine sections whose backends are to be probed."""
    if recipe is not None and python is None:
        return [recipe.engine]
    kinds = [kind for kind in BUILT_IN if find_backend(kind).capabilities.own_interpreter]
    return [EngineConfig(kind=kind, python=python) for kind in kinds]
