"""Compare torch and NCCL of trainer ranks and engine servers, and choose the settings of NCCL that both need.

interpreter ─► a process of it imports torch, without using a GPU ─► TorchBuild ─► refuse_unequal_nccl
train.environment, engine.environment, the environment of `arl train`, else 0 ─► nccl_settings
"""

import inspect
import os
import subprocess
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from arl.config.recipe import Recipe
from arl.errors import InputError, RecipeError

ALONE: Mapping[str, str] = {"PYTHONPATH": ""}  # our packages are not for another interpreter
PROBE_SECONDS = 120.0  # importing torch takes seconds, and from a cold disk much longer
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


def run_code(python: str, code: str, seconds: float) -> subprocess.CompletedProcess[str]:
    """Have the interpreter at `python` run `code`, with its own packages only.

    Args:
        seconds: after which it is ended.

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


def describe_torch() -> dict[str, Any]:
    """Describe the torch of the interpreter that runs this, in the fields of TorchBuild; importing it takes a second.

    `probe_torch` sends this source to other interpreters, so it imports what it needs.
    """
    import ctypes
    import os

    import torch

    cuda = torch.version.cuda
    nccl = None
    if cuda:
        # torch.cuda.nccl.version() is what torch was built with. What counts is the library that it has loaded, and
        # another nvidia-nccl package may have been installed in its place.
        nccl = list(torch.cuda.nccl.version()[:3])  # type: ignore[no-untyped-call]
        try:
            library = ctypes.CDLL("libnccl.so.2", os.RTLD_LAZY | os.RTLD_NOLOAD)
            number = ctypes.c_int()
            library.ncclGetVersion(ctypes.byref(number))
            nccl = [number.value // 10_000, number.value // 100 % 100, number.value % 100]
        except OSError:  # it is a part of torch's own library
            pass
    return {"torch": str(torch.__version__), "cuda": cuda, "nccl": nccl}


def own_torch() -> TorchBuild:
    """Describe the torch of this interpreter, under which trainer ranks run."""
    return msgspec.convert(describe_torch(), TorchBuild)


def probe_torch(python: str) -> TorchBuild:
    """Ask another interpreter for its torch.

    Raises:
        InputError: it cannot be run, or has no torch that can be imported.
    """
    source = f"from typing import Any\n{inspect.getsource(describe_torch)}"
    code = f"{source}\nimport json\nprint('\\n' + json.dumps(describe_torch()))"
    try:
        done = run_code(python, code, PROBE_SECONDS)
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
        remedy = "Install the same torch for CUDA in both"
        if ours.nccl and theirs.nccl:  # an NCCL has all functions of those before it, so the newer one serves both
            newer = ".".join(map(str, max(ours.nccl, theirs.nccl)))
            older, where = (ours, python) if ours.nccl < theirs.nccl else (theirs, their_python)
            package = f"nvidia-nccl-cu{str(older.cuda).partition('.')[0]}=={newer}"
            remedy = f"`{where} -m pip install --no-deps {package}` gives both the newer one"
        raise InputError(
            f"sync.transport broadcast: both sides need the same NCCL. The trainer has {ours} ({python}), and the "
            f"engines have {theirs} ({their_python}). {remedy}; or set sync.transport to file"
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
