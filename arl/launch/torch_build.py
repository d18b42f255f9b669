"""Find out which torch an interpreter has, and with which NCCL. This module imports torch only where it is asked to.

interpreter ─► a process of it imports torch, without using a GPU ─► TorchBuild ─► refuse_unequal_nccl
"""

import subprocess

import msgspec
from msgspec import Struct

from arl.errors import InputError
from arl.launch.interpreter import last_words, run_code

PROBE_SECONDS = 120.0  # importing torch takes seconds, and from a cold disk much longer
# In torch built for a CPU, the function that reports NCCL's version lacks what it calls.
PROBE = """
import json, torch
try:
    nccl = list(torch.cuda.nccl.version())[:3]
except (AttributeError, ImportError):
    nccl = None
found = {"torch": str(torch.__version__), "cuda": torch.version.cuda, "nccl": nccl}
print()
print(json.dumps(found))
"""


class TorchBuild(Struct, frozen=True):
    """Describe the torch of one interpreter.

    >>> str(TorchBuild("2.13.0+cu130", "13.0", (2, 29, 7)))
    'torch 2.13.0+cu130 for CUDA 13.0 with NCCL 2.29.7'
    >>> str(TorchBuild("2.13.0+cpu"))
    'torch 2.13.0+cpu for the CPU'
    """

    torch: str  # its version
    cuda: str | None = None  # the CUDA that it was built for; None: built for the CPU
    nccl: tuple[int, int, int] | None = None  # major, minor, patch; None: it has none

    def __str__(self) -> str:
        device = f"CUDA {self.cuda}" if self.cuda else "the CPU"
        nccl = f" with NCCL {'.'.join(map(str, self.nccl))}" if self.nccl else ""
        return f"torch {self.torch} for {device}{nccl}"


def own_torch() -> TorchBuild:
    """Describe the torch of this interpreter, under which trainer ranks run. Importing it takes a second."""
    import torch

    cuda = torch.version.cuda
    if cuda is None:
        return TorchBuild(str(torch.__version__))
    major, minor, patch = torch.cuda.nccl.version()[:3]  # type: ignore[no-untyped-call]
    return TorchBuild(str(torch.__version__), cuda, (major, minor, patch))


def probe_torch(python: str) -> TorchBuild:
    """Ask another interpreter for its torch.

    Args:
        python: path of the interpreter, which has packages of its own: PYTHONPATH is not for it.

    Raises:
        InputError: it cannot be run, or has no torch that can be imported.
    """
    try:
        done = run_code(python, PROBE, PROBE_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{python}: cannot be asked for its torch ({error})") from error
    lines = done.stdout.strip().splitlines()
    try:
        return msgspec.json.decode(lines[-1] if lines else "", type=TorchBuild)
    except msgspec.DecodeError:
        reason = last_words(done)
    raise InputError(f"{python}: its torch cannot be imported ({reason}); install torch there, built for CUDA")


def refuse_unequal_nccl(ours: TorchBuild, python: str, theirs: TorchBuild, their_python: str) -> None:
    """Compare the NCCL of trainer ranks and engine servers, each with its interpreter.

    NCCL refuses a process group whose members have different versions (`ncclInvalidUsage`), and does so at the first
    weight broadcast.

    Raises:
        InputError: one side has no NCCL, or the versions differ.
    """
    if ours.nccl is not None and ours.nccl == theirs.nccl:
        return
    sides = ((ours, python), (theirs, their_python))
    lacking = [place for build, place in sides if build.nccl is None or build.cuda is None]
    if lacking:
        remedy = f"Install a torch for CUDA with {lacking[0]} -m pip"
    else:
        # A torch works with a newer NCCL than it was built with; with an older one it may miss functions.
        older, place = min(sides, key=lambda side: side[0].nccl or ())
        newest = max(ours.nccl or (), theirs.nccl or ())
        remedy = (
            f"Install the same torch for CUDA in both, or the newer NCCL: {place} -m pip install "
            f"nvidia-nccl-cu{(older.cuda or '').partition('.')[0]}=={'.'.join(map(str, newest))}"
        )
    raise InputError(
        f"sync.transport broadcast: both sides need the same NCCL. The trainer has {ours} ({python}), and the engines "
        f"have {theirs} ({their_python}). {remedy}, or set sync.transport to file"
    )
