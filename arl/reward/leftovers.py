"""Kill what calls of reward functions leave running.

    worker ─ keeper ─┬ lane ─ what its calls have started
                     └ what that has left: when a parent ends, the kernel gives its children to the keeper

A keeper inherits the orphans of one lane alone, whatever sessions and process groups they have moved to. So the end of
a call ends what that call has left, and the end of a lane ends what it has started, and nothing that other calls use.
"""

import contextlib
import os
import signal
import time
from collections.abc import Collection
from typing import NoReturn

import psutil

from arl.launch.process_state import state_of

PATIENCE = 1.0  # seconds for killed processes to end; one that waits for a disk ends later, by itself
LAST_PATIENCE = 5.0  # the same where nobody comes who kills what is left
PAUSE = 0.001  # seconds between two looks at one
ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD, "")


def keep(lane: int) -> NoReturn:
    """Reap what is left to this process until its lane ends; then kill the rest, and end as the lane did.

    Unblocked by the end of any child. It needs no deadline: whoever wants an end before kills this process.
    """
    ended, status = 0, 0
    while ended != lane:
        ended, status = os.waitpid(-1, 0)
    kill_children(os.getpid(), spare=())
    _end_with(status)


def _end_with(status: int) -> NoReturn:
    """End this process as another one has ended."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        with contextlib.suppress(OSError):  # of SIGKILL, which needs none
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(max(code, 0))


def kill_children(parent: int, spare: Collection[int], patience: float = PATIENCE) -> None:
    """Kill the children of a process except those in `spare`, and all below them.

    Those whose parents were killed are given to this process, or its own parent, and are found again. The parent reaps
    them. One that may not be killed, as of another user, is left alone.

    Unblocked by their ends, and by the clock after `patience` seconds.
    """
    end = time.monotonic() + patience
    killed: set[int] = set()
    while time.monotonic() < end:
        found = [pid for pid in descendants(parent, spare) if pid not in killed]
        if not found:
            return
        killed.update(found)
        # All of them before one is awaited, because they may start others meanwhile.
        mortal = [pid for pid in found if _kill(pid)]
        for pid in mortal:
            _wait_for_end(pid, end)


def reap_children(spare: Collection[int]) -> None:
    """Reap the children of this process that have ended, except those in `spare`."""
    for pid in children_of(os.getpid()):
        if pid not in spare:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def descendants(pid: int, spare: Collection[int] = ()) -> list[int]:
    """Return the children of a process except those in `spare`, their children, and so on."""
    found = [child for child in children_of(pid) if child not in spare]
    for child in found:  # it grows meanwhile
        found += children_of(child)
    return found


def children_of(pid: int) -> list[int]:
    """Return the children of a process, ended ones too; none, where the kernel does not list them."""
    found = []
    with contextlib.suppress(OSError):  # it has ended meanwhile
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += [int(child) for child in file.read().split()]
    return found


def _kill(pid: int) -> bool:
    """Kill a process, and return whether it will end."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return True


def _wait_for_end(pid: int, end: float) -> None:
    while state_of(pid) not in ENDED and time.monotonic() < end:
        time.sleep(PAUSE)
