"""Say what the kernel has a process do, for messages about processes that hang."""

from pathlib import Path

RUNS = "runs"
STATE_SECONDS = 2.0  # for a node to say what a process of it does
UNREACHABLE = "cannot be asked"  # begins the phrase of a process whose node does not answer
STATES = {
    "T": "is stopped by a signal (SIGSTOP?)",
    "t": "is stopped by a debugger",
    "D": "is blocked in the kernel, by a disk or a device",
    "Z": "has exited",
}


def describe_state(letter: str) -> str:
    """Return a phrase for the letter that Linux gives to a state; `RUNS` if nothing keeps the process from running."""
    return STATES.get(letter, RUNS)


def state_letter(pid: int) -> str:
    """Return the letter of a process of this machine; empty if there is none of this id."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    after_name = stat.rpartition(")")[2]
    return after_name.split()[0]
