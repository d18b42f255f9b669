"""Commands ask a controller through files; what else lies there, and a disk that fails, cost the run nothing."""

import asyncio
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import arl
from arl.errors import InputError, RunError
from arl.launch.base import Resources
from arl.launch.run_secrets import read_secrets, run_secrets
from arl.metrics.run_status import ProcessStatus, write_status
from arl.run import control as run_control
from arl.run.control import (
    ControlAnswer,
    DescribeRun,
    JoinEngine,
    LiveRun,
    RemoveEngine,
    Request,
    RunControl,
    serve_control,
)
from arl.types import StartingVersions
from tests.watch.statuses import a_run, a_status

ENGINE = ProcessStatus(role="engine-0", node="n1", pid=17, version=3, open=2)
RUN = LiveRun(
    arl=arl.__version__,
    only_host="here",
    weights=None,
    versions=StartingVersions("model"),
    model="ab12",
    like=Resources(threads=1),
    engines=[ENGINE],
)


@pytest.fixture(autouse=True)
def in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody wait a second between two looks at the folder."""
    monkeypatch.setattr(run_control, "POLL_SECONDS", 0.01)


def served(directory: Path, ask: Callable[[RunControl], Awaitable[None]]) -> None:
    """Serve the folder of a run while `ask` goes on."""

    async def do(request: Request) -> ControlAnswer:
        match request:
            case DescribeRun():
                return ControlAnswer(run=RUN)
            case JoinEngine():
                raise RunError(f"{request.url}: nobody answers")
            case RemoveEngine("engine-0"):
                return ControlAnswer(done="removed")
        raise InputError(f"{request.name}: the run has no such engine")

    async def main() -> None:
        async with asyncio.timeout(60), serve_control(directory, do):
            await ask(RunControl(directory))

    asyncio.run(main())


def test_a_command_sees_the_engines_and_gets_an_answer_or_the_reason_why_not(tmp_path: Path) -> None:
    async def ask(control: RunControl) -> None:
        assert (await control.describe()).engines == [ENGINE]
        assert (await control.ask(RemoveEngine("engine-0"), 30)).done == "removed"
        with pytest.raises(InputError, match="has no such engine"):
            await control.ask(RemoveEngine("engine-9"), 30)
        with pytest.raises(RunError, match="nobody answers"):
            await control.ask(JoinEngine(name="engine-n2-0", url="http://127.0.0.1:9", node="n2", pid=4), 30)
        assert not list((tmp_path / "control").iterdir())

    served(tmp_path, ask)
    assert not (tmp_path / "control").exists()


def test_a_controller_that_was_killed_is_told_from_a_run_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_control, "DESCRIBE_SECONDS", 0.1)
    (tmp_path / "control").mkdir()
    with pytest.raises(RunError, match=r"no answer in 0.1 s: its controller was killed, or hangs"):
        asyncio.run(RunControl(tmp_path).describe())
    assert not list((tmp_path / "control").iterdir())


def test_a_run_whose_engines_cannot_change_says_what_it_does_or_how_it_ended(tmp_path: Path) -> None:
    run = a_run(tmp_path, a_status(stage="starting engines and trainer"))
    with pytest.raises(InputError, match="takes no commands now"):
        asyncio.run(RunControl(run).describe())
    write_status(run, a_status(end="stopped at version 3"))
    with pytest.raises(InputError, match="has ended: stopped at version 3"):
        asyncio.run(RunControl(run).describe())


def test_the_key_is_this_users_alone_and_goes_with_the_run(tmp_path: Path) -> None:
    with run_secrets(tmp_path, ["127.0.0.1"]) as trust:
        file = tmp_path / "secrets" / "run.key"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        assert read_secrets(tmp_path) == trust
    assert not (tmp_path / "secrets").exists()
    with pytest.raises(InputError, match="join as the user who has started the run"):
        read_secrets(tmp_path)
