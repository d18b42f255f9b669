"""A process behind a step's runner is watched: here the runner runs on this machine, without an srun before it."""

import asyncio
import contextlib
import os
import sys
from pathlib import Path

import psutil
import pytest
from arl.launch.slurm.step_file import write_step_file

from arl.launch.base import Command
from arl.launch.process import start_child
from arl.launch.slurm import step_process, step_runner
from arl.launch.slurm.step_process import SlurmProcess
from arl.launch.slurm.step_runner import MARK
from tests.processes import survivors

SLEEP = "import time; print('ready here', flush=True); time.sleep(600)"
# It leaves a process in a session of its own, which holds its output open.
LEAVE = f"""
import signal, subprocess, sys
subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session=True)
signal.pause()
"""


async def start_step(directory: Path, code: str) -> SlurmProcess:
    """Start a few lines of Python behind a runner."""
    file = write_step_file(directory, "engine-0", Command((sys.executable, "-c", code)), {}, "127.0.0.1")
    runner = Command((sys.executable, "-I", str(step_runner.__file__), str(file)))
    reading_end, writing_end = os.pipe()
    os.set_blocking(writing_end, False)
    try:
        return SlurmProcess(
            "engine-0",
            await start_child(runner, reading_end),
            directory / "engine-0.log",
            None,
            node=1,
            node_name="n2",
            stdin=writing_end,
            on_lost_node=lambda node: None,
        )
    finally:
        os.close(reading_end)


def test_all_who_ask_at_once_what_a_process_does_are_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_process, "STATE_SECONDS", 60.0)

    async def main() -> list[str]:
        process = await start_step(tmp_path, SLEEP)
        try:
            await process.ready(60)
            return await asyncio.gather(*(process.state() for _ in range(3)))
        finally:
            await process.stop(0)

    assert asyncio.run(main()) == ["runs"] * 3


def test_how_a_step_ended_is_said_although_nobody_has_reported_it_and_its_output_is_held_open(tmp_path: Path) -> None:
    async def main() -> str:
        process = await start_step(tmp_path, LEAVE)
        await process.ready(60)
        runner = psutil.Process(process._process.pid)
        started = runner.children(recursive=True)
        try:
            runner.kill()
            return await process.ended()
        finally:
            for other in started:
                with contextlib.suppress(psutil.NoSuchProcess):  # it has died with the runner
                    other.kill()
            assert not survivors(started)

    assert asyncio.run(main()).endswith("was killed by SIGKILL, perhaps because memory was short")


def test_a_process_that_prints_lines_as_its_runner_does_keeps_its_pid_and_its_log(tmp_path: Path) -> None:
    lines = ["pid 1", "pid x", "ended x", f"ended {'9' * 5000}", "state Running", "state \u0663"]
    code = f"for line in {lines!r}: print('{MARK}' + line)\n{SLEEP}"

    async def main() -> tuple[int, str]:
        process = await start_step(tmp_path, code)
        try:
            await process.ready(60)
            return process.pid, process.last_words()
        finally:
            await process.stop(0)

    pid, words = asyncio.run(main())
    assert pid > 1
    assert f"{MARK}state Running" in words
