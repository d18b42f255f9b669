"""Commands ask a controller through files; what else lies there, and a disk that fails, cost the run nothing."""

import asyncio
import json
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import arl
from arl.errors import InputError, RunError
from arl.launch.base import Resources
from arl.launch.run_secrets import read_secrets, run_secrets
from arl.metrics.run_status import write_status
from arl.run.control import run_control
from arl.run.control.control_messages import EngineStatus, JoinEngine, LiveRun, RemoveEngine
from arl.run.control.run_control import RunControl, serve_control
from arl.types import StartingVersions
from tests.watch.statuses import a_run, a_status


class Engines:
    """Stand for the engines of a run: remembers what was asked of them."""

    def __init__(self) -> None:
        self.changes: list[str] = []

    def statuses(self) -> list[EngineStatus]:
        return [EngineStatus("engine-0", "n1", 17, "serving", version=3, open=2, seconds=5.0)]

    async def join(self, guest: JoinEngine) -> str:
        raise RunError(f"{guest.url}: nobody answers")

    async def remove(self, name: str) -> int:
        if name != "engine-0":
            raise InputError(f"{name}: the run has no such engine")
        self.changes.append(f"remove {name}")
        return 2


def fail(line: str) -> None:
    raise AssertionError(line)


def served(
    run: Path,
    ask: Callable[[RunControl, Engines], Awaitable[None]],
    note: Callable[[str], None] = fail,
    version: str = arl.__version__,
) -> None:
    """Serve the folder of `run` while `ask` goes on."""
    described = LiveRun(
        arl=version,
        host="here",
        is_local=True,
        weights=None,
        versions=StartingVersions("model"),
        model="ab12",
        like=Resources(threads=1),
        engines=[],
    )

    async def main() -> None:
        engines = Engines()
        async with asyncio.timeout(60), serve_control(run, engines, described, note):
            await ask(RunControl(run), engines)

    asyncio.run(main())


def test_a_command_sees_the_engines_and_gets_an_answer_or_the_reason_why_not(tmp_path: Path) -> None:
    async def ask(control: RunControl, engines: Engines) -> None:
        assert (await control.describe()).engines == engines.statuses()
        assert await control.ask(RemoveEngine("engine-0"), 30) == "engine-0: 2 open requests go on elsewhere"
        with pytest.raises(InputError, match="has no such engine"):
            await control.ask(RemoveEngine("engine-9"), 30)
        with pytest.raises(RunError, match="nobody answers"):
            await control.ask(JoinEngine(name="engine-n2-0", url="http://127.0.0.1:9", node="n2", pid=4), 30)
        assert engines.changes == ["remove engine-0"]
        assert not list((tmp_path / "control" / "answers").iterdir())

    served(tmp_path, ask)
    assert not (tmp_path / "control").exists()


def test_a_run_of_another_version_takes_no_commands(tmp_path: Path) -> None:
    async def ask(control: RunControl, _: Engines) -> None:
        with pytest.raises(InputError, match=r"runs under arl 9\.9, and this is .*; install the same"):
            await control.describe()

    served(tmp_path, ask, version="9.9")


def test_what_is_no_request_is_answered_with_an_error_and_those_behind_it_are_done(tmp_path: Path) -> None:
    async def ask(control: RunControl, engines: Engines) -> None:
        folder = tmp_path / "control"
        (folder / "requests" / "0.json").write_bytes(b'{"type": "RemoveEngine", "name": ["engine-0"]}')
        (folder / "requests" / "unfinished.partial").write_bytes(b'{"type": "Remo')
        assert await control.ask(RemoveEngine("engine-0"), 30)
        answer = folder / "answers" / "0.json"
        while not answer.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert "request 0.json cannot be read: " in json.loads(answer.read_bytes())["error"]

    served(tmp_path, ask)


def test_a_folder_that_is_taken_away_costs_the_run_its_commands_and_nothing_else(tmp_path: Path) -> None:
    away = tmp_path / "elsewhere"
    notes: asyncio.Queue[str] = asyncio.Queue()

    async def ask(control: RunControl, _: Engines) -> None:
        (tmp_path / "control").rename(away)
        assert "No such file or directory; `arl engines` cannot reach this run" in await notes.get()
        away.rename(tmp_path / "control")
        assert "can be used again" in await notes.get()
        assert await control.describe()

    served(tmp_path, ask, notes.put_nowait)


def test_a_controller_that_was_killed_is_told_from_a_run_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_control, "TAKEN_SECONDS", 0.1)
    for folder in ("requests", "answers"):
        (tmp_path / "control" / folder).mkdir(parents=True)
    with pytest.raises(RunError, match=r"its controller has taken no request for .*: it was killed, or hangs"):
        asyncio.run(RunControl(tmp_path).describe())
    assert not list((tmp_path / "control" / "requests").iterdir())


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
