"""Compare torch and NCCL of trainer ranks and engine servers, and choose the settings of NCCL that both need.

interpreter ─► a process of it imports torch, without using a GPU ─► TorchBuild ─► refuse_unequal_nccl
train.environment, engine.environment, the environment of `arl train`, else 0 ─► nccl_settings
"""

import os
import subprocess
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from arl.config.recipe import Recipe
from arl.errors import InputError, RecipeError

ALONE: Mapping[str, str] = {"PYTHONPATH": ""}  # our packages are not for another interpreter
PROBE_SECONDS = 120.0  # importing torch takes seconds, and from a cold disk much longer
# torch built for a CPU has the function that reports NCCL's version, but not what it calls.
PROBE = """
import json, torch
cuda = torch.version.cuda
nccl = list(torch.cuda.nccl.version())[:3] if cuda else None
print("\\n" + json.dumps({"torch": str(torch.__version__), "cuda": cuda, "nccl": nccl}))
"""
# SGLang sets both variables to 0 where they are unset (`_set_envs_and_config`, entrypoints/engine.py, 0.5.20), and
# NCCL's own default is on. With cuMem on at one end only, the ends exchange handles of different kinds (a file
# descriptor and a legacy IPC handle), and the first broadcast fails or hangs. NVLink SHARP (NVLS) needs buffers from
# cuMem.
SHARED = ("NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE")
OFF = "0"


class TorchBuild(Struct, frozen=True):
    """Describe the torch of one interpreter.

    >>> str(TorchBuild("2.13.0+cu130", "13.0", (2, 29, 7)))
    'torch 2.13.0+cu130 with NCCL 2.29.7'
    >>> str(TorchBuild("2.13.0+cpu"))
    'torch 2.13.0+cpu without NCCL'
    """

    torch: str  # its version
    cuda: str | None = None  # the CUDA that it was built for; None: built for the CPU
    nccl: tuple[int, int, int] | None = None  # major, minor, patch; None: it has none

    def __str__(self) -> str:
        nccl = f"with NCCL {'.'.join(map(str, self.nccl))}" if self.nccl else "without NCCL"
        return f"torch {self.torch} {nccl}"


def run_code(python: str, code: str, seconds: float | None) -> subprocess.CompletedProcess[str]:
    """Have the interpreter at `python` run `code`, with its own packages only.

    Args:
        seconds: after which it is ended; None: it may take as long as it needs.

    Raises:
        OSError: it cannot be run.
        subprocess.TimeoutExpired: it takes longer.
    """
    return subprocess.run(
        [python, "-c", code],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env={**os.environ, **ALONE},
        cwd="/",  # a file of the working directory could shadow one of its modules
    )


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last line that a failed process printed; if it printed none, its exit code."""
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}, and no answer"


def own_torch() -> TorchBuild:
    """Describe the torch of this interpreter, under which trainer ranks run. Importing it takes a second."""
    import torch

    nccl = torch.cuda.nccl.version()[:3] if torch.version.cuda else None  # type: ignore[no-untyped-call]
    return TorchBuild(str(torch.__version__), torch.version.cuda, nccl)


def probe_torch(python: str) -> TorchBuild:
    """Ask another interpreter for its torch.

    Raises:
        InputError: it cannot be run, or has no torch that can be imported.
    """
    try:
        done = run_code(python, PROBE, PROBE_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{python}: cannot be asked for its torch ({error})") from error
    if done.returncode:
        raise InputError(
            f"{python}: its torch cannot be imported ({last_line(done)}); install torch there, built for CUDA"
        )
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=TorchBuild)


def refuse_unequal_nccl(ours: TorchBuild, python: str, theirs: TorchBuild, their_python: str) -> None:
    """Compare the NCCL of trainer ranks and engine servers, each with its interpreter.

    NCCL refuses a process group whose members have different versions (`ncclInvalidUsage`), and does so at the first
    weight broadcast.

    Raises:
        InputError: one side has no NCCL, or the versions differ.
    """
    if ours.nccl is None or ours.nccl != theirs.nccl:
        raise InputError(
            f"sync.transport broadcast: both sides need the same NCCL. The trainer has {ours} ({python}), and the "
            f"engines have {theirs} ({their_python}). Install the same torch for CUDA in both, or the newer "
            "nvidia-nccl package, or set sync.transport to file"
        )


def nccl_settings(recipe: Recipe) -> dict[str, str]:
    """Return the value of each setting of NCCL that both ends of a weight broadcast must share.

    Raises:
        RecipeError: train.environment and engine.environment give different values.
    """
    found = {}
    for name in SHARED:
        for_ranks = recipe.train.environment.get(name)
        for_engines = recipe.engine.environment.get(name, for_ranks)
        if for_ranks not in (None, for_engines):
            raise RecipeError(
                f"train.environment {name}={for_ranks}, engine.environment {name}={for_engines}: both ends of a weight "
                "broadcast need the same value; give it on one side, and the other side takes it"
            )
        found[name] = for_engines or os.environ.get(name, OFF)
    return found
