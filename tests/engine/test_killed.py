"""A server that is killed in mid-request: what it had said survives, and nothing of it lives on."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from arl.engine.base import Engine
from arl.errors import EngineError
from arl.types import Increment
from tests.engine.conftest import Weights, ask, complete, connect, start_server, start_sglang, within


@pytest.mark.parametrize("kind", ["server", pytest.param("sglang", marks=pytest.mark.sglang)])
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
            said.append(increment)
            os.kill(doomed.process.pid, signal.SIGKILL)

    async def scenario() -> None:
        async with connect(doomed.url, generate_seconds=10.0) as engine:
            with pytest.raises(EngineError, match=f"{doomed.url}: request victim: "):
                await listen_and_kill(engine)
            with pytest.raises(EngineError, match="request next: /generate"):
                await complete(engine, ask("next"))

    within(scenario, 20.0)
    doomed.process.wait(timeout=10)
    assert sum(len(increment.token_ids) for increment in said) >= 1
    assert not psutil.wait_procs(tree, timeout=10)[1]
