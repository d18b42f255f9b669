"""Run in front of each process of a run, and define what such a process knows of its launcher.

    python -I -S arl/launch/child.py COMMAND ARGUMENT …

The runner asks the kernel to kill this process when its parent dies, keeps to certain cores where the launcher says
so, and then replaces itself by the command (`exec`). All of this happens before the command has imported anything, and
outlives the `exec`, so that no command needs to know of it, in whatever interpreter or language it runs. The runner
itself uses the standard library only.
"""

import contextlib
import ctypes
import os
import signal
import sys
from typing import NoReturn

PARENT = "ARL_PARENT_PID"  # process id of the launcher
CORES = "ARL_CORES"  # numbers of the cores that the process may use, as in 0,1; unset: the launcher's
DEATH_SIGNAL = "ARL_DEATH_SIGNAL"  # number of the signal that the process gets when its launcher dies; unset: SIGKILL
RUN_KEY = "ARL_RUN_KEY"  # secret of the run, which a process must know to be served
CANNOT_START = 127  # exit code, as a shell's
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Ask the kernel (Linux) to send a signal to this process when its parent, which is process `parent`, dies.

    Raises:
        SystemExit: the parent has died before the request was made.
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        raise SystemExit(f"the parent process {parent} is gone")


def outlive_parent() -> None:
    """Ask the kernel to leave this process alone when its parent dies, because it has work to do then."""
    _prctl(_PR_SET_PDEATHSIG, 0)


def adopt_orphans() -> None:
    """Ask the kernel to make this process the parent of those descendants whose own parent dies."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def exit_immediately(code: int) -> NoReturn:
    """Exit without the interpreter's teardown.

    Teardown takes a second where torch is loaded, and gloo's threads sometimes abort in it. Output that cannot be
    written any more, because a pipe is closed or a disk full, is lost.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


def main(argv: list[str]) -> NoReturn:
    """Become `argv`, as a process that dies with its parent, and keeps to the cores that the launcher has set."""
    die_with(int(os.environ.get(PARENT, os.getppid())), int(os.environ.pop(DEATH_SIGNAL, signal.SIGKILL)))
    cores = os.environ.pop(CORES, "")
    if cores:
        os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        print(f"{argv[0]} cannot be started: {error.strerror}", file=sys.stderr)
        exit_immediately(CANNOT_START)


if __name__ == "__main__":
    main(sys.argv[1:])
