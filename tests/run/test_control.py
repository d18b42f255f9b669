"""Commands ask a controller through files; whatever else lies there neither stops it nor slows it."""

import asyncio
import errno
import json
import os
import shutil
import stat
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import arl
from arl.errors import InputError, RunError
from arl.launch.base import Resources
from arl.metrics.run_status import write_status
from arl.run.control import control_folder
from arl.run.control.control_client import RunControl
from arl.run.control.control_folder import (
    LONGEST,
    REQUEST_SECONDS,
    ControlFolder,
    Polled,
    new_name,
    read_private,
    write_private,
)
from arl.run.control.control_messages import EngineStatus, JoinEngine, LiveRun, RemoveEngine
from arl.run.control.control_server import serve_control
from arl.run.control.run_key_file import key_file, read_trust
from arl.types import StartingVersions
from tests.watch.statuses import a_run, a_status

MODEL = "ab12"  # sha256


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
    run: Path, ask: Callable[[RunControl, Engines], Awaitable[None]], note: Callable[[str], None] = fail
) -> None:
    """Serve the folder of `run` while `ask` goes on."""
    state = LiveRun(
        beat=0,
        arl=arl.__version__,
        host="here",
        is_local=True,
        weights=None,
        versions=StartingVersions("model"),
        model=MODEL,
        like=Resources(threads=1),
        engines=[],
    )

    async def main() -> None:
        engines = Engines()
        async with asyncio.timeout(60), serve_control(ControlFolder(run), engines, state, note):
            await ask(RunControl(run), engines)

    asyncio.run(main())


def guest(**changes: str) -> JoinEngine:
    said = {"name": "engine-n2-0", "url": "http://127.0.0.1:9", "node": "n2", "arl": "0.1.0", "model": MODEL, **changes}
    return JoinEngine(pid=4, **said)


def test_a_command_sees_the_engines_and_gets_an_answer_or_the_reason_why_not(tmp_path: Path) -> None:
    async def ask(control: RunControl, engines: Engines) -> None:
        assert (await control.state()).engines == engines.statuses()
        assert await control.ask(RemoveEngine("engine-0"), 30) == "engine-0: 2 open requests go on elsewhere"
        with pytest.raises(InputError, match="has no such engine"):
            await control.ask(RemoveEngine("engine-9"), 30)
        with pytest.raises(RunError, match="nobody answers"):
            await control.ask(guest(arl=arl.__version__), 30)
        with pytest.raises(InputError, match=r"arl 9\.9: the run has arl"):
            await control.ask(guest(arl="9.9"), 30)
        with pytest.raises(InputError, match=r"^engine-n2-0: has other weights, .*sha256 5eed; theirs is ab12"):
            await control.ask(guest(arl=arl.__version__, model="5eed"), 30)
        with pytest.raises(InputError, match=r"http://\[x: is no address of a server: Invalid IPv6 URL"):
            await control.ask(guest(arl=arl.__version__, url="http://[x"), 30)
        assert engines.changes == ["remove engine-0"]
        assert not list((tmp_path / "control" / "answers").iterdir())

    served(tmp_path, ask)
    assert not (tmp_path / "control").exists()


def test_garbage_is_answered_or_left_alone_and_commands_are_answered_nevertheless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = new_name()
    is_bad_answered = threading.Event()
    write = ControlFolder.answer

    def write_and_tell(folder: ControlFolder, name: str, data: bytes) -> None:
        write(folder, name, data)
        if name == bad:
            is_bad_answered.set()

    async def ask(control: RunControl, engines: Engines) -> None:
        await control.state()
        requests = tmp_path / "control" / "requests"
        (requests / bad).write_bytes(b'{"type": "RemoveEngine", "name": ["engine-0"]}\xff')
        (requests / new_name()).write_bytes(b'{"type": "RemoveEngine", "deep": ' + b"[" * 100_000)
        (requests / new_name()).write_bytes(b"x" * (LONGEST + 1))
        (requests / new_name()).symlink_to("/etc/passwd")
        (requests / new_name()).mkdir()
        os.mkfifo(requests / new_name())
        for i in range(2000):
            (requests / f"garbage-{i}").touch()
        assert await control.ask(RemoveEngine("engine-0"), 30)
        assert engines.changes == ["remove engine-0"]
        assert await asyncio.to_thread(is_bad_answered.wait, 30)
        answer = tmp_path / "control" / "answers" / bad
        assert f"request {bad} cannot be read: " in json.loads(answer.read_bytes())["error"]

    monkeypatch.setattr(ControlFolder, "answer", write_and_tell)
    served(tmp_path, ask)


def test_a_request_whose_command_died_long_ago_is_dropped(tmp_path: Path) -> None:
    async def ask(control: RunControl, engines: Engines) -> None:
        stale = tmp_path / "control" / "requests" / new_name()
        unseen = stale.with_name("not-yet")  # the controller looks only at names of requests
        unseen.write_bytes(b'{"type": "RemoveEngine", "name": "engine-1"}')
        long_ago = unseen.stat().st_mtime - 2 * REQUEST_SECONDS
        os.utime(unseen, (long_ago, long_ago))
        unseen.rename(stale)
        assert await control.ask(RemoveEngine("engine-0"), 30)
        assert not stale.exists()
        assert engines.changes == ["remove engine-0"]

    served(tmp_path, ask)


def test_a_request_that_cannot_be_taken_away_is_answered_later_once_and_those_behind_it_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ControlFolder(tmp_path)
    folder.make()
    names = {new_name() for _ in range(5)}
    stuck = min(names)
    for name in names:
        write_private(folder.requests / name, name.encode())
    unlink = Path.unlink

    def fail_once(path: Path, missing_ok: bool = False) -> None:
        if path.name == stuck:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", fail_once)
    polled = folder.poll(b"{}")
    assert dict(polled.requests) == {name: name.encode() for name in names - {stuck}}
    assert polled.failure == f"{folder.requests / stuck}: Input/output error"
    monkeypatch.undo()
    assert folder.poll(b"{}") == Polled([(stuck, stuck.encode())], "")
    assert folder.poll(b"{}") == Polled([], "")


def test_a_request_that_its_command_has_taken_back_is_not_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ControlFolder(tmp_path)
    folder.make()
    request = folder.requests / new_name()
    write_private(request, b"{}")
    real = control_folder.read_private

    def read_and_take_back(path: Path) -> bytes:
        data = real(path)
        request.unlink()
        return data

    monkeypatch.setattr(control_folder, "read_private", read_and_take_back)
    assert folder.poll(b"{}") == Polled([], "")


def test_an_answer_that_the_disk_has_no_room_for_is_written_when_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = ControlFolder.answer
    failures = [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))]

    def fail_once(folder: ControlFolder, name: str, data: bytes) -> None:
        if failures:
            raise failures.pop()
        write(folder, name, data)

    async def ask(control: RunControl, engines: Engines) -> None:
        assert await control.ask(RemoveEngine("engine-0"), 30)
        assert (failures, engines.changes) == ([], ["remove engine-0"])

    monkeypatch.setattr(ControlFolder, "answer", fail_once)
    served(tmp_path, ask)


def test_a_folder_that_is_taken_away_costs_the_run_its_commands_and_nothing_else(tmp_path: Path) -> None:
    away = tmp_path / "elsewhere"
    notes: list[str] = []

    async def ask(control: RunControl, _: Engines) -> None:
        before = await control.state()
        (tmp_path / "control").rename(away)
        with pytest.raises(InputError, match="is no run"):
            await control.state()
        await noted.wait()
        away.rename(tmp_path / "control")
        assert (await control.state()).beat > before.beat
        await asyncio.wait_for(used_again.wait(), 30)

    def note(line: str) -> None:
        notes.append(line)
        noted.set()
        if "can be used again" in line:
            used_again.set()

    noted = asyncio.Event()
    used_again = asyncio.Event()
    served(tmp_path, ask, note)
    assert "No such file or directory; `arl engines` cannot reach this run" in notes[0]
    assert "can be used again" in notes[-1]


def test_the_folder_is_removed_even_if_the_last_state_is_written_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ControlFolder(tmp_path)
    folder.make()
    remove = shutil.rmtree

    def remove_and_write(path: Path, ignore_errors: bool) -> None:
        monkeypatch.undo()
        remove(folder.answers)
        write_private(folder.state, b"{}")

    monkeypatch.setattr(shutil, "rmtree", remove_and_write)
    folder.remove()
    assert not folder.path.exists()


def test_a_file_that_another_host_replaces_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_private(tmp_path / "state.json", b"{}")

    def stale(descriptor: int) -> os.stat_result:
        monkeypatch.undo()
        raise OSError(errno.ESTALE, f"Stale file handle {descriptor}")

    monkeypatch.setattr(os, "fstat", stale)
    assert read_private(tmp_path / "state.json") == b"{}"


def test_the_key_is_this_users_alone_and_goes_with_the_run(tmp_path: Path) -> None:
    with key_file(tmp_path, "secret"):
        file = tmp_path / "secrets" / "run.key"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        assert read_trust(tmp_path).key == "secret"
    assert not (tmp_path / "secrets").exists()
    with pytest.raises(InputError, match="join as the user who has started the run"):
        read_trust(tmp_path)


def test_a_run_whose_engines_cannot_change_says_what_it_does_or_how_it_ended(tmp_path: Path) -> None:
    run = a_run(tmp_path, a_status(stage="starting engines and trainer"))
    with pytest.raises(InputError, match="takes no commands now"):
        asyncio.run(RunControl(run).state())
    write_status(run, a_status(end="stopped at version 3"))
    with pytest.raises(InputError, match="has ended: stopped at version 3"):
        asyncio.run(RunControl(run).state())
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file: is no directory; give that of a run"):
        asyncio.run(RunControl(tmp_path / "file").state())
