"""A reward function whose worker gets no process for a lane: at first, and as long as a program of a call lives.

The environment variable SCARCE names a directory. The program's process id is in its file `taker`.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from arl.types import Problem, Response

DIRECTORY = "SCARCE"
FIRST_FAILURES = 3


def score(problem: Problem, response: Response) -> float:
    """Grade 1. `take` starts a program in a session of its own that takes all processes, and hangs."""
    if response.text == "take":
        sleeper = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(613)"], start_new_session=True)
        taker = _taker().with_suffix(f".{sleeper.pid}")
        taker.write_text(str(sleeper.pid))
        taker.rename(_taker())
        time.sleep(613)
    return 1.0


def _prepare() -> None:
    """Let `os.fork` fail in the worker as the kernel does where processes are scarce."""
    fork = os.fork
    worker = os.getpid()
    failures = 0

    def scarce_fork() -> int:
        nonlocal failures
        if os.getpid() == worker and (failures < FIRST_FAILURES or _runs()):
            failures += 1
            raise BlockingIOError("no process is left")
        return fork()

    os.fork = scarce_fork


def _taker() -> Path:
    return Path(os.environ[DIRECTORY]) / "taker"


def _runs() -> bool:
    """Return whether the program that takes all processes lives."""
    try:
        return Path(f"/proc/{_taker().read_text()}").exists()
    except FileNotFoundError:
        return False


score.prepare = _prepare  # type: ignore[attr-defined]
