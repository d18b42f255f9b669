"""Folders and ports of a run, on a machine where other runs begin and clear up; which failure is told."""

import asyncio
import os
import shutil
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from arl.clock import deadline
from arl.errors import DeadlineError, EngineError, ProcessDied
from arl.launch.base import Command, Resources
from arl.launch.local import LocalLauncher
from arl.run.failures import explain_deaths, reported_failures
from arl.sync.publication_directory import abandoned_directories, make_locked_directory


def test_a_folder_of_weights_is_its_runs_from_the_first_moment_however_many_clear_up(tmp_path: Path) -> None:
    """Locks are of open files, so threads stand for runs."""
    done = False

    def clear_up() -> int:
        removed = 0
        while not done:
            for orphan in abandoned_directories(tmp_path):
                shutil.rmtree(orphan)
                removed += 1
        return removed

    with ThreadPoolExecutor(2) as runs:
        sweeps = [runs.submit(clear_up) for _ in range(2)]
        try:
            for _ in range(500):
                own, held = make_locked_directory(tmp_path)
                (own / "v1").mkdir()
                assert own not in list(abandoned_directories(tmp_path))
                os.close(held)
        finally:
            done = True
    assert sum(sweep.result() for sweep in sweeps) > 0
    for orphan in abandoned_directories(tmp_path):
        shutil.rmtree(orphan)
    assert not list(tmp_path.iterdir())


def test_of_a_death_and_what_the_others_said_of_it_the_death_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with reported_failures(), LocalLauncher(tmp_path, 1.0) as launcher, explain_deaths(launcher):
            abort = EngineError("http://127.0.0.1:1/abort_request answered 500")
            raise ExceptionGroup("of the keepers", [abort, ProcessDied("engine-1 was killed by SIGKILL")])

    with pytest.raises(ProcessDied, match="engine-1 was killed by SIGKILL"):
        asyncio.run(main())


def test_a_process_that_hangs_is_named_with_its_pid_its_state_and_the_end_of_its_log(tmp_path: Path) -> None:
    code = "import time; print('loaded version 7'); print('ready 7'); time.sleep(1000)"
    command = Command((sys.executable, "-c", code))

    async def main() -> None:
        async with reported_failures(), LocalLauncher(tmp_path, 1.0) as launcher, explain_deaths(launcher):
            frozen, alive = [await launcher.start(f"trainer-{rank}", command, Resources(1)) for rank in range(2)]
            for process in (frozen, alive):
                await process.ready(60)
            pids.extend([frozen.pid, alive.pid])
            os.kill(frozen.pid, signal.SIGSTOP)
            await asyncio.to_thread(os.waitid, os.P_PID, frozen.pid, os.WSTOPPED | os.WNOWAIT)
            async with deadline(0.1, "controller", "training step 7"):
                await asyncio.get_running_loop().create_future()

    pids: list[int] = []
    with pytest.raises(DeadlineError, match=r"controller waited 0\.1 s for training step 7") as raised:
        asyncio.run(main())
    message = str(raised.value)
    assert f"trainer-0 (pid {pids[0]}) is stopped by a signal" in message
    assert f"{tmp_path}/trainer-0.log" in message
    assert "loaded version 7" in message
    assert f"pid {pids[1]}" not in message  # it could go on
