"""Start a process on this machine that ends with this one, signal it with everything it started, and say what it does.

Every process that a launcher starts leads a session of its own, so its pid names the session.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from arl.launch.child import PARENT

RUNNER = (sys.executable, "-I", "-S", str(Path(__file__).with_name("child.py")))
RUNS = "runs"
STATES = {
    psutil.STATUS_STOPPED: "is stopped by a signal (SIGSTOP?)",
    psutil.STATUS_DISK_SLEEP: "is blocked in the kernel, by a disk or a device",
}


async def spawn(
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    output: int,
    errors: int | None = None,
    stdin: int = asyncio.subprocess.DEVNULL,
    inherited: Mapping[str, str] = os.environ,
) -> asyncio.subprocess.Process:
    """Start `argv` behind the runner (arl.launch.child), in a session of its own.

    Ctrl-C is the controller's to handle, so a process that a terminal started must not get it as well.

    Args:
        argv: program and arguments.
        environment: variables that are added to those it inherits.
        output: file descriptor of its standard output.
        errors: file descriptor of its standard error; None: `output`.
        stdin: file descriptor of its standard input.
        inherited: variables that it inherits.
    """
    return await asyncio.create_subprocess_exec(
        *RUNNER,
        *argv,
        stdin=stdin,
        stdout=output,
        stderr=output if errors is None else errors,
        env={**inherited, **environment, PARENT: str(os.getpid())},
        start_new_session=True,
    )


def signal_all(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a signal to a spawned process and to what it started, if anything is left of them.

    SIGKILL goes to everything in its session: also to what has made a process group of its own.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    for pid in psutil.pids() if number == signal.SIGKILL else ():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if os.getsid(pid) == process.pid:
                os.kill(pid, number)


def resident_bytes() -> Counter[int]:
    """Return the resident bytes of each session. Pages that processes share are counted for each of them."""
    sessions: Counter[int] = Counter()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):  # it has ended meanwhile
            sessions[os.getsid(process.pid)] += process.memory_info().rss
    return sessions


def describe_state(pid: int) -> str:
    """Return what keeps a process of this machine from running; `RUNS`: nothing does, or there is none of this id.

    It waits for one that it has started if that is stopped.
    """
    try:
        process = psutil.Process(pid)
        state = STATES.get(process.status(), RUNS)
        for child in process.children(recursive=True) if state == RUNS else ():
            if child.status() == psutil.STATUS_STOPPED:
                return f"has started process {child.pid}, which {STATES[psutil.STATUS_STOPPED]}"
        return state
    except psutil.Error:
        return RUNS


def describe_exit(code: int, lowered_by: str = "") -> str:
    """Say how a process has ended, by its exit code; 137 is a shell's for SIGKILL.

    Args:
        lowered_by: fields of the recipe that lower the memory of the process.

    >>> describe_exit(1), describe_exit(-15)
    ('exited with code 1', 'was killed by SIGTERM')
    >>> describe_exit(-9, lowered_by="engine.slots")
    'was killed by SIGKILL, perhaps because memory was short (see `dmesg`); lower engine.slots'
    """
    names = {member.value: member.name for member in signal.Signals}
    how = f"exited with code {code}" if code >= 0 else f"was killed by {names.get(-code, f'signal {-code}')}"
    if code not in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return how
    return f"{how}, perhaps because memory was short (see `dmesg`){lowered_by and f'; lower {lowered_by}'}"
