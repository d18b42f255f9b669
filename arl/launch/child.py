"""What every process of a run is told by its environment, that it must not outlive its parent, and how it ends."""

import ctypes
import os
import signal
import sys
from typing import NoReturn

PARENT = "ARL_PARENT_PID"
RUN_KEY = "ARL_RUN_KEY"  # secret of the run
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel (Linux) for SIGKILL when the parent dies; leave at once if it already has."""
    parent = os.environ.get(PARENT)
    if parent is None:
        return
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != int(parent):
        raise SystemExit(f"the parent process {parent} is gone")


def leave(code: int) -> NoReturn:
    """End without interpreter teardown, which takes a second where torch is loaded, and in which gloo's threads
    sometimes abort."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
