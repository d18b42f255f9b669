"""Start a process on this machine that ends with this one, and signal it together with everything it started."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from arl.launch.child import PARENT
from arl.launch.process_state import session_members

RUNNER = (sys.executable, "-I", "-S", str(Path(__file__).with_name("child.py")))


async def spawn(
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdin: int,
    output: int,
    inherited: Mapping[str, str] = os.environ,
    directory: str | None = None,
) -> asyncio.subprocess.Process:
    """Start `argv` behind the runner (arl.launch.child), in a session of its own.

    Ctrl-C is the controller's to handle, so a process that a terminal started must not get it as well.

    Args:
        argv: program and arguments.
        environment: variables that are added to those it inherits.
        stdin: file descriptor of its standard input.
        output: file descriptor of its standard output and error.
        inherited: variables that it inherits.
        directory: in which it runs; None: ours.
    """
    return await asyncio.create_subprocess_exec(
        *RUNNER,
        *argv,
        stdin=stdin,
        stdout=output,
        stderr=output,
        env={**inherited, **environment, PARENT: str(os.getpid())},
        cwd=directory,
        start_new_session=True,
    )


def signal_all(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a signal to a spawned process and to what it started in its session, if anything is left of them."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def kill_session(process: asyncio.subprocess.Process) -> None:
    """Kill a spawned process with everything in its session: also what has made a process group of its own."""
    signal_all(process, signal.SIGKILL)
    for member in session_members(process.pid):
        with contextlib.suppress(psutil.Error):
            member.kill()
