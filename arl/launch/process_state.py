"""Say what the kernel has a process do, or how it has ended, for messages about processes."""

import signal
import time
from pathlib import Path

RUNS = "runs"
STATE_SECONDS = 2.0  # for a node to say what a process of it does
UNREACHABLE = "cannot be asked"  # begins the phrase of a process whose node does not answer
BLOCKED = "D"
BLOCKED_SECONDS = 0.25  # for which a process stays blocked; every page that comes from a disk blocks it for an instant
LOOK_SECONDS = 0.05  # from one look to the next meanwhile
STATES = {
    "T": "is stopped by a signal (SIGSTOP?)",
    "t": "is stopped by a debugger",
    BLOCKED: "is blocked in the kernel, by a disk or a device",
    "Z": "has exited",
}


def describe_state(letter: str) -> str:
    """Return a phrase for the letter that Linux gives to a state; `RUNS` if nothing keeps the process from running."""
    return STATES.get(letter, RUNS)


def state_letter(pid: int) -> str:
    """Return the letter of a process of this machine; empty if there is none of this id.

    `BLOCKED` is returned of a process that stays so, and only after `BLOCKED_SECONDS`.
    """
    end = time.monotonic() + BLOCKED_SECONDS
    while (letter := _letter_now(pid)) == BLOCKED and time.monotonic() < end:
        time.sleep(LOOK_SECONDS)
    return letter


def describe_exit(code: int) -> str:
    """Say how a process has ended, by its exit code.

    >>> describe_exit(1), describe_exit(-9), describe_exit(-37)
    ('exited with code 1', 'was killed by SIGKILL', 'was killed by signal 37')
    """
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal, most of which have no name
        name = f"signal {-code}"
    return f"was killed by {name}"


def _letter_now(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    after_name = stat.rpartition(")")[2]
    return after_name.split()[0]
