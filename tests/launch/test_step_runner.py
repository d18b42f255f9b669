"""The runner between Slurm and a process: what it says of the process when the controller asks."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from arl.launch.base import Command
from arl.launch.slurm import step_runner
from arl.launch.slurm.step_file import write_step_file
from arl.launch.slurm.step_runner import MARK, STATE
from tests.processes import survivors

# It starts another process, and both write to a hundred megabytes.
LARGE = """
import subprocess, sys, time
child = [sys.executable, "-c", "import time; held = b'x' * 100_000_000; print('ready', flush=True); time.sleep(600)"]
held = b"x" * 100_000_000
subprocess.Popen(child)
time.sleep(600)
"""


def test_nothing_that_it_has_started_is_left_when_nobody_reads_that_the_controller_has_gone(tmp_path: Path) -> None:
    step = write_step_file(tmp_path, "engine-0", Command((sys.executable, "-c", LARGE)), {}, "127.0.0.1")
    command = [sys.executable, "-I", str(step_runner.__file__), str(step)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as runner:
        assert runner.stdin is not None
        assert runner.stdout is not None
        assert b"ready\n" in {runner.stdout.readline() for _ in range(2)}
        started = psutil.Process(runner.pid).children(recursive=True)
        runner.stdout.close()
        runner.stdin.close()
        runner.wait(timeout=60)
    assert len(started) == 2
    assert not survivors(started)


def test_it_says_what_its_process_does_and_passes_signals_on(tmp_path: Path) -> None:
    sleep = Command((sys.executable, "-c", "import time; time.sleep(600)"))
    step = write_step_file(tmp_path, "engine-0", sleep, {}, "127.0.0.1")
    command = [sys.executable, "-I", str(step_runner.__file__), str(step)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as runner:
        assert runner.stdin is not None
        assert runner.stdout is not None
        pid = int(runner.stdout.readline().removeprefix(f"{MARK}pid "))
        runner.stdin.write(f"{int(signal.SIGSTOP)}\n")
        answer = ""
        while answer != f"{MARK}state stopped\n":  # a busy machine stops a process a moment later
            runner.stdin.write(f"{STATE}\n")
            runner.stdin.flush()
            answer = runner.stdout.readline()
            assert answer.startswith(f"{MARK}state ")
        runner.stdin.write(f"{int(signal.SIGKILL)}\n")
        runner.stdin.flush()
        assert runner.stdout.readline() == f"{MARK}ended -9\n"
    assert not Path(f"/proc/{pid}").exists() or os.getpgid(pid) != pid


@pytest.mark.parametrize("line", [b"\xff\xfe\n", b"999\n", b"-9\n", b"9" * 5000, b"kill\n", b"\0\n"])
def test_a_line_that_says_nothing_known_ends_the_process_and_is_shown(line: bytes, tmp_path: Path) -> None:
    sleep = Command((sys.executable, "-c", "import time; time.sleep(600)"))
    step = write_step_file(tmp_path, "engine-0", sleep, {}, "127.0.0.1")
    command = [sys.executable, "-I", str(step_runner.__file__), str(step)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=False) as runner:
        assert runner.stdin is not None
        assert runner.stdout is not None
        assert runner.stdout.readline().startswith(f"{MARK}pid ".encode())
        runner.stdin.write(line)
        runner.stdin.flush()
        said = runner.stdout.readline().decode()
        assert said == f"{MARK}the controller has sent {line.strip()[:16]!r}, which is no signal\n"
        assert runner.stdout.readline() == f"{MARK}ended -9\n".encode()
