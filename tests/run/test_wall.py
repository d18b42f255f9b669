"""Folders and ports of a run, on a machine where other runs begin and clear up; which failure is told."""

import asyncio
import os
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from arl.errors import EngineError, ProcessDied
from arl.launch.address import LOOPBACK, held_port
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
        async with reported_failures(), LocalLauncher(tmp_path, 1.0) as processes, explain_deaths(processes):
            abort = EngineError("http://127.0.0.1:1/abort_request answered 500")
            raise ExceptionGroup("of the keepers", [abort, ProcessDied("engine-1 was killed by SIGKILL")])

    with pytest.raises(ProcessDied, match="engine-1 was killed by SIGKILL"):
        asyncio.run(main())


def test_the_port_where_ranks_will_meet_is_nobody_elses_before_they_do() -> None:
    with held_port(LOOPBACK) as port:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        with socket.create_server(("127.0.0.1", port)) as listener, socket.create_connection(listener.getsockname()):
            pass
