"""What `arl top` shows of a status, and what it says where there is none."""

import fcntl
import io
import os
import platform
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from arl.errors import InputError
from arl.metrics.run_files import LOCK
from arl.metrics.run_status import ProcessStatus
from arl.watch.run_logs import find_logs
from arl.watch.top import describe_silence, show_once
from tests.watch.statuses import a_run, a_status

LONG_AGO = 100.0


def top(run: Path) -> str:
    """Return what `arl top RUN --once` prints."""
    shown = io.StringIO()
    show_once(run, Console(file=shown, width=160))
    return shown.getvalue()


def test_a_status_says_who_waits_and_why_with_queue_staleness_speed_and_accuracy(tmp_path: Path) -> None:
    shown = top(a_run(tmp_path, a_status()))
    assert [line.rstrip() for line in shown.splitlines()] == [
        f"{tmp_path} · training · version 12 of 60 · 0.8 s a step · about 36 s left",
        "trainer    waits 62% of the time: for groups 60%, for the staleness bound 2%",
        "engines    idle 5% of the time; 3% because no group may start before weights are loaded",
        "now        trainer waits 3.2 s for 4 groups for step 12",
        "groups     6 running, 2 finished",
        "staleness  bound 2; engines serve version 11, the trainer has 12",
        "tokens/s   1,234 generated, 1,100 trained (last 10 steps)",
        "reward     held_out 0.625 at version 10 · training 0.500 at version 12",
        "role      node  pid  version  open",
        "engine-0  n1    17        11     9",
    ]


def test_of_hundreds_of_processes_those_in_trouble_are_shown(tmp_path: Path) -> None:
    processes = [ProcessStatus(role=f"engine-{i}", node="n1", pid=100 + i) for i in range(300)]
    processes[200] = ProcessStatus(role="engine-200", node="n2", pid=300, restarts=3)
    processes[290] = ProcessStatus(role="engine-290", node="n2", pid=390, state="ended, code -9")
    shown = top(a_run(tmp_path, a_status(processes=tuple(processes))))
    assert "engine-200" in shown
    assert "ended, code -9" in shown
    assert "… and 276 more processes" in shown


def test_an_old_status_says_for_how_long_nothing_was_written_and_what_is_known_of_the_process(tmp_path: Path) -> None:
    run = a_run(tmp_path, a_status(time=time.time() - LONG_AGO))
    with (run / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "the run's lock is held, so it runs, and hangs or is stopped" in top(run)
    shown = top(run)
    first, second, *_ = shown.splitlines()
    assert f"the controller (process {os.getpid()} on {platform.node()}) has not written for 1" in first
    assert "no process holds the run's lock any more: it was killed" in first
    assert "last seen: training · version 12 of 60 · 0.8 s a step" in second
    assert not any(line.startswith("now ") for line in shown.splitlines())
    assert " left" not in shown
    said = describe_silence(run, a_status(host="n7"), LONG_AGO)
    assert "has not written for 100 s; whether it still runs can be seen on n7 alone" in said


def test_a_directory_above_runs_is_refused_with_their_names(tmp_path: Path) -> None:
    run = tmp_path / "small"
    run.mkdir()
    a_run(run)
    with pytest.raises(InputError, match=f"is no run, because it has no recipe.yaml; there are {run}"):
        find_logs(tmp_path, None)
    with pytest.raises(InputError, match="is no directory"):
        top(tmp_path / "nothing")


def test_in_a_terminal_the_view_stays_until_q_is_pressed(tmp_path: Path) -> None:
    run = a_run(tmp_path, a_status())
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "arl.cli", "top", str(run)]
    with subprocess.Popen(command, stdin=slave, stdout=slave, env={**os.environ, "TERM": "xterm"}) as process:
        os.close(slave)
        shown = b""
        while b"engine-0" not in shown:
            shown += os.read(master, 4096)
        assert process.poll() is None
        os.write(master, b"q")
        try:
            assert process.wait(60) == 0
        finally:
            process.kill()
    os.close(master)
