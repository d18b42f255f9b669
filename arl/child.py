"""What every process of a run is told by its environment, and that it must not outlive its parent."""

import ctypes
import os
import signal

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
