"""What a process waits for a core is not its work; what it computes and what it sleeps is."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from arl.reward.work_timer import WorkTimer

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
COMPUTE = "print('up', flush=True)\nwhile True: pass"
GIVE_WAY = "import os; os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\n" + COMPUTE


@pytest.fixture
def started() -> Iterator["Started"]:
    started = Started()
    yield started
    started.end()


class Started:
    """Start processes on one core, and end them."""

    def __init__(self) -> None:
        self._core = min(os.sched_getaffinity(0))
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, code: str) -> int:
        """Return the pid of a process that runs `code`, when it has begun."""
        pinned = f"import os; os.sched_setaffinity(0, [{self._core}])\n{code}"
        process = subprocess.Popen([sys.executable, "-c", pinned], stdout=subprocess.PIPE, text=True)
        self._processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        return process.pid

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("code", [SLEEP, COMPUTE])
def test_a_process_that_sleeps_or_computes_is_at_work(started: Started, code: str) -> None:
    timer = WorkTimer(started.start(code))
    deadline = time.monotonic() + 60
    while timer.seconds < 0.3:
        assert time.monotonic() < deadline
    assert timer.seconds <= timer.elapsed


def test_a_process_that_waits_for_a_core_is_not_at_work_however_long_the_wait_that_goes_on(started: Started) -> None:
    waiting = started.start(GIVE_WAY)
    started.start(COMPUTE)
    timer = WorkTimer(waiting)
    while timer.elapsed < 2:
        assert timer.seconds < 0.05 + 0.3 * timer.elapsed
