"""A process that is blocked in the kernel is told from one that was so for an instant."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from arl.launch import process_state
from arl.launch.process_state import state_of

# The parent of a vfork is blocked in the kernel until its child starts a program; this child first opens a pipe, which
# waits for somebody who writes to it.
BLOCK = """
import os, signal, sys
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 3, sys.argv[1], os.O_RDONLY, 0)])
signal.pause()
"""


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.fixture
def blocked(pipe: Path) -> Iterator[int]:
    """Yield the pid of a process that is blocked until somebody opens the pipe."""
    process = subprocess.Popen([sys.executable, "-c", BLOCK, str(pipe)])
    watched = psutil.Process(process.pid)
    try:
        wait_until(lambda: bool(watched.children()))
        wait_until(lambda: process_state._state_now(process.pid) == psutil.STATUS_DISK_SLEEP)
        yield process.pid
    finally:
        for child in watched.children():
            child.kill()
        process.kill()
        process.wait()


def test_a_process_that_stays_blocked_is_called_so(blocked: int) -> None:
    assert state_of(blocked) == psutil.STATUS_DISK_SLEEP


def test_a_process_that_was_blocked_for_an_instant_runs(
    blocked: int, pipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end_the_block(seconds: float) -> None:
        os.close(os.open(pipe, os.O_WRONLY))
        wait_until(lambda: process_state._state_now(blocked) == psutil.STATUS_SLEEPING)

    monkeypatch.setattr(time, "sleep", end_the_block)
    assert state_of(blocked) != psutil.STATUS_DISK_SLEEP
