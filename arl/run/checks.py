"""Look at what runs on GPUs need, before anything starts: `arl doctor` prints what is found, preflight raises it.

Nothing here touches CUDA, because the controller must hold no CUDA context.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from arl.config.imports import import_function
from arl.config.recipe import Recipe
from arl.engine.backend import Installation
from arl.errors import InputError, RecipeError, SandboxError
from arl.launch.devices import driver_version, find_gpus, refuse_busy
from arl.launch.placement import Placement
from arl.launch.torch_build import last_line, own_torch, probe_torch, refuse_unequal_nccl, run_code
from arl.models.flash import FLASH_3, has_flash_3
from arl.rollout.tools import find_tools
from arl.run.rewards import reward_name
from arl.sandbox.current import check_sandbox
from arl.sync.publication_directory import SHARED_MEMORY
from arl.tasks.registry import env_name
from arl.types import Transport

MIN_SHARED = 1_000_000_000  # bytes that NVIDIA advises for NCCL: docker run --shm-size=1g
NO_SHARED_MEMORY = "NCCL_SHM_DISABLE"
EXAMINATION_SECONDS = 600.0  # compiling takes half a minute, on a busy machine much longer


class Finding(Struct, frozen=True):
    """Hold one line of the report of `arl doctor`, and the commands that help if it is not good."""

    good: bool
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"ok       {self.what}" if self.good else f"MISSING  {self.what}\n{self.remedy}".rstrip()


def gpu_checks(
    backends: Sequence[Installation], uses_nccl: bool, broadcasts: bool, collocated: bool
) -> Iterator[Finding]:
    """Check what runs on GPUs need of this machine, in the order in which preflight raises it.

    Args:
        backends: engines that are installed; those with an interpreter of their own have packages of their own.
        uses_nccl: processes form an NCCL group, on one node or over several.
        broadcasts: engines and the trainer are in one group, so that both need the same NCCL.
        collocated: engines release their memory to ranks on the same GPUs.
    """
    chosen = os.environ.get("CC", "").split()
    compiler = shutil.which(chosen[0]) if chosen else shutil.which("gcc") or shutil.which("clang")
    yield Finding(
        compiler is not None,
        f"C compiler, with which Triton compiles on GPUs{f': {compiler}' if compiler else ''}",
        "apt install gcc, or name one in CC",
    )
    header = Path(sysconfig.get_path("include"), "Python.h")
    version = "{}.{}".format(*sys.version_info)
    yield Finding(
        header.is_file(), f"Python's headers, with which Triton compiles: {header}", f"apt install python{version}-dev"
    )
    for backend in backends:
        lacking = ", ".join(backend.lacking)
        what = f"what {backend.name} needs on GPUs, in {backend.place}{': ' if lacking else ''}{lacking}"
        yield Finding(not lacking, what, backend.remedy)
        if backend.examination:
            yield from _examine(backend, collocated)
    if uses_nccl:  # which moves data between GPUs without peer access by /dev/shm
        free = shutil.disk_usage(SHARED_MEMORY).free if os.path.isdir(SHARED_MEMORY) else 0
        yield Finding(
            free >= MIN_SHARED,
            f"{SHARED_MEMORY} for NCCL, {free / 1e9:.2f} GB free",
            f"it needs about {MIN_SHARED / 1e9:.0f} GB: start the container with --shm-size=16g or --ipc=host, or set "
            f"{NO_SHARED_MEMORY}=1 for `arl train`, which is slower",
        )
    for backend in backends:
        if not broadcasts or not backend.capabilities.own_interpreter:
            continue
        try:
            theirs = probe_torch(backend.place)
            refuse_unequal_nccl(own_torch(), sys.executable, theirs, backend.place)
            yield Finding(True, f"{backend.name}'s {theirs}, the same NCCL as the trainer's")
        except InputError as error:
            yield Finding(False, f"{backend.name} and the trainer in one NCCL group", str(error))


def _examine(backend: Installation, collocated: bool) -> list[Finding]:
    """Run a backend's own examination, in its interpreter."""
    try:
        done = run_code(backend.place, f"{backend.examination}({collocated})", EXAMINATION_SECONDS)
        if not done.returncode:  # a wrapper may print something first
            return msgspec.json.decode(done.stdout.splitlines()[-1], type=list[Finding])
    except subprocess.TimeoutExpired:
        slow = f"{backend.name} on GPUs: no answer in {EXAMINATION_SECONDS:g} s"
        return [Finding(False, slow, "try again when the machine is idle")]
    return [Finding(False, f"{backend.name} on GPUs: {last_line(done)}", f"reinstall what {backend.place} has")]


def check_gpus(recipe: Recipe, placement: Placement, transport: Transport, backend: Installation) -> None:
    """Check the GPUs of a run, and what it needs on them.

    Raises:
        InputError: another process uses a GPU, or some of `gpu_checks` are not good.
    """
    names = placement.devices_of(0)
    if not names:
        return
    width = len(placement.engines[0].devices)
    forms_group = len(placement.ranks) > 1 or width > 1 or transport == "broadcast"
    environments = (recipe.train.environment, recipe.engine.environment, os.environ)
    uses_nccl = forms_group and not any(one.get(NO_SHARED_MEMORY) == "1" for one in environments)
    found = gpu_checks([backend], uses_nccl, transport == "broadcast", recipe.mode == "collocated")
    lacks = [f"missing: {finding.what}; {finding.remedy}" for finding in found if not finding.good]
    if lacks:
        raise InputError("\n".join(lacks))
    for gpu in find_gpus(names):
        refuse_busy(gpu)


def gpu_findings(visible: Sequence[str], backends: Sequence[Installation]) -> Iterator[Finding]:
    """Describe the GPUs of this machine, and check what runs on them need; nothing where there are none.

    Args:
        visible: GPUs that torch sees.
        backends: see `gpu_checks`.
    """
    gpus = find_gpus()
    if not gpus and not visible:
        return
    for gpu in gpus:
        users = ", ".join(gpu.processes) or "no process computes on it"
        yield Finding(True, f"{gpu}, {gpu.used_bytes / 1e9:.1f} GB used, driver {driver_version()}; {users}")
    ours = own_torch()
    yield Finding(ours.cuda is not None, f"the trainer's {ours}")
    version = f"3 of {FLASH_3}" if has_flash_3() else f"2 of torch; version 3, for H100 and H200, is in {FLASH_3}"
    yield Finding(True, f"flash attention {version}")
    yield from gpu_checks(backends, uses_nccl=True, broadcasts=True, collocated=True)


def check_sandboxes(recipes: Iterable[Recipe]) -> None:
    """Let the sandbox, which is the same for all sources and suites, run a program if something declares its use.

    Raises:
        RecipeError: it does not. Says what is missing, and the remedy.
    """
    for recipe in recipes:
        reward = import_function(reward_name(recipe), "reward.function")
        env = import_function(env_name(recipe), "rollout.env")
        tools = [tool.function for tool in find_tools(recipe.rollout.tools)]
        if any(getattr(each, "uses_sandbox", False) for each in (reward, env, *tools)):
            try:
                check_sandbox(recipe.sandbox)
            except SandboxError as error:
                raise RecipeError(str(error)) from error
            return
