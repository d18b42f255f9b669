"""Kill servers in mid-request: what they had sent survives, and no process of theirs does."""

import contextlib
import os
import signal
import subprocess
import tempfile
from pathlib import Path

import psutil
import pytest

from arl.engine.base import Engine
from arl.errors import EngineError
from arl.launch.spawn import RUNNER
from arl.types import Increment
from tests.engine.conftest import (
    KEY,
    ServerProcess,
    Weights,
    ask,
    complete,
    connect,
    semaphores_of,
    sglang_command,
    start_server,
    start_sglang,
    within,
)
from tests.processes import survivors


@pytest.mark.parametrize("kind", ["server", pytest.param("sglang", marks=[pytest.mark.sglang, pytest.mark.long])])
def test_what_a_killed_server_had_said_survives_it(
    kind: str, old: Weights, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The open request raises an error that names server and request; so does the next one."""
    if kind == "sglang":
        doomed = start_sglang(request.getfixturevalue("sglang_python"), old.path, tmp_path / "log")
    else:
        doomed = start_server(old.path, tmp_path / "log")
    tree = [psutil.Process(doomed.process.pid), *psutil.Process(doomed.process.pid).children(recursive=True)]
    said: list[Increment] = []

    async def listen_and_kill(engine: Engine) -> None:
        async for increment in engine.generate(ask("victim", tokens=500)):
            if not said:
                os.kill(doomed.process.pid, signal.SIGKILL)
            said.append(increment)

    async def scenario() -> None:
        async with connect(doomed.url, generate_seconds=10.0) as engine:
            with pytest.raises(EngineError, match=f"{doomed.url}: request victim: "):
                await listen_and_kill(engine)
            with pytest.raises(EngineError, match="request next: /generate"):
                await complete(engine, ask("next"))

    within(scenario)
    doomed.process.wait(timeout=120)
    assert sum(len(increment.token_ids) for increment in said) >= 1
    assert not survivors(tree)


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
