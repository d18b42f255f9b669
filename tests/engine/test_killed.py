"""Kill an SGLang server when it has just begun: nothing of it is left."""

import contextlib
import os
import signal
import subprocess
import tempfile
from pathlib import Path

import psutil
import pytest

from arl.launch.spawn import RUNNER
from tests.engine.conftest import (
    KEY,
    ServerProcess,
    Weights,
    semaphores_of,
    sglang_command,
)
from tests.processes import survivors


@pytest.mark.sglang
def test_sglangs_processes_listen_on_loopback_alone(sglang_server: ServerProcess) -> None:
    assert sglang_server.listens_on() == {"127.0.0.1"}


@pytest.mark.sglang
def test_nothing_is_left_of_an_sglang_server_that_is_killed_when_its_children_have_just_begun(
    sglang_python: str, old: Weights
) -> None:
    """They import for seconds before they ask to die with their parent; its sockets lie in a folder of its own."""
    argv, env = sglang_command(sglang_python, old.path)
    with tempfile.TemporaryDirectory() as home:  # a short path, for sockets
        env |= {"ARL_RUN_KEY": KEY, "ARL_PARENT_PID": str(os.getpid()), "TMPDIR": home}
        doomed = psutil.Popen(
            [*RUNNER, *argv], env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        children: list[psutil.Process] = []
        while len(children) < 3:  # Python's own, the scheduler, the detokenizer; the guard is nobody's
            with contextlib.suppress(psutil.TimeoutExpired):
                raise AssertionError(f"it ended with {doomed.wait(timeout=0.02)}")
            children = doomed.children(recursive=True)
        (place,) = Path(home).glob("arl-sglang-*")
        assert list(place.iterdir())
        os.killpg(doomed.pid, signal.SIGKILL)  # as a run ends what it has started
        doomed.communicate(timeout=120)  # the guard holds its output open until it is done
        assert not survivors(children)
        assert not place.exists()
        assert not semaphores_of(place)
