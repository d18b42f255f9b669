"""Put damaged files into RUN/control, which the controller and commands read."""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from unittest import mock

import msgspec

import arl
from arl.errors import InputError, RunError
from arl.files import decode_json
from arl.launch.base import Resources
from arl.run.control import control_server
from arl.run.control.control_client import RunControl
from arl.run.control.control_folder import LONGEST, ControlFolder, new_name, write_private
from arl.run.control.control_messages import (
    AddEngine,
    ControlAnswer,
    EngineStatus,
    JoinEngine,
    LiveRun,
    RemoveEngine,
    Request,
)
from arl.run.control.control_server import serve_control
from arl.run.control.run_key_file import read_trust
from arl.types import StartingVersions
from tests.fuzz.damage import damage_bytes, damage_value
from tests.fuzz.strangers import SECONDS, Background, as_json
from tests.fuzz.trials import Draw, Edge, Trial

POLL_SECONDS = 0.005
STATE = LiveRun(
    beat=0,
    arl=arl.__version__,
    host="here",
    is_local=True,
    weights=None,
    versions=StartingVersions("model"),
    model="ab12",
    like=Resources(threads=1),
    engines=[EngineStatus("engine-0", "n1", 17, "serving", version=3)],
)
REQUESTS: list[Request] = [
    AddEngine(),
    RemoveEngine("engine-0"),
    JoinEngine(name="engine-b-0", url="http://127.0.0.1:9", node="n", pid=4, arl=arl.__version__, model="ab12"),
]


class Engines:
    """Stand for the engines of a run. What has joined is among them from then on, as in a run."""

    def __init__(self) -> None:
        self._joined = EngineStatus("engine-0", "n1", 17, "serving")

    def statuses(self) -> list[EngineStatus]:
        """Return one engine."""
        return [self._joined]

    async def add(self) -> str:
        """Add nothing."""
        return "engine-1"

    async def join(self, guest: JoinEngine) -> str:
        """Remember the guest."""
        self._joined = EngineStatus(guest.name, guest.node, guest.pid, "joined")
        return guest.name

    async def remove(self, name: str) -> int:
        """Refuse, with the name that was given."""
        raise InputError(f"{name}: the run has no such engine")


@contextlib.contextmanager
def requests(folder: Path) -> Iterator[Draw]:
    """Serve a folder of requests; at the end an honest one is answered."""
    loop = Background()
    control = ControlFolder(folder)
    with mock.patch.object(control_server, "POLL_SECONDS", POLL_SECONDS):
        is_serving = threading.Event()
        serving = loop.begin(_serve(control, is_serving))
        assert is_serving.wait(SECONDS)

        def draw(random: Random) -> Trial:
            data = _damaged(random, msgspec.json.encode(random.choice(REQUESTS)), LONGEST)
            kind = random.choice(("file",) * 30 + ("fifo", "link", "folder"))
            return Trial(f"{kind} {data[:200]!r}", lambda: _ask(loop, control, kind, data))

        try:
            yield draw
            assert loop.call(RunControl(folder).ask(AddEngine(), SECONDS)) == "engine-1"
            assert not serving.done()
        finally:
            loop.call(_end(serving))
            loop.close()


async def _serve(control: ControlFolder, is_serving: threading.Event) -> None:
    notes: list[str] = []
    async with serve_control(control, Engines(), STATE, notes.append):
        is_serving.set()
        await asyncio.Event().wait()


async def _end(serving: "asyncio.Task[None]") -> None:
    serving.cancel()
    await asyncio.wait({serving})


def _ask(loop: Background, control: ControlFolder, kind: str, data: bytes) -> None:
    name = new_name()
    file = control.requests / name
    if kind != "file":
        _make_other(file, kind)
        assert loop.call(RunControl(control.path.parent).ask(AddEngine(), SECONDS)) == "engine-1"
        return
    write_private(file, data)
    answer: ControlAnswer = _answer(control.answers / name)
    if answer.error:
        raise (InputError if answer.is_input else RunError)(answer.error)


def _make_other(file: Path, kind: str) -> None:
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "link":
        file.symlink_to("/dev/zero")
    else:
        file.mkdir()


def _answer(file: Path) -> ControlAnswer:
    """Take the answer away as soon as it is there. Nothing announces it, so it is looked for."""
    end = time.monotonic() + SECONDS
    while not file.exists():
        assert time.monotonic() < end, "no answer"
        time.sleep(POLL_SECONDS)
    data = file.read_bytes()
    file.unlink()
    answer: ControlAnswer = decode_json(data, ControlAnswer)
    return answer


@contextlib.contextmanager
def state(folder: Path) -> Iterator[Draw]:
    """Read what a controller says of itself, and its key, from a run directory of somebody else."""
    control = ControlFolder(folder)
    control.make()
    (folder / "secrets").mkdir()
    key = folder / "secrets" / "run.key"

    def draw(random: Random) -> Trial:
        is_key = random.random() < 0.3
        good = b"0123456789abcdef" * 3 if is_key else msgspec.json.encode(STATE)
        data = _damaged(random, good, LONGEST)

        def do() -> None:
            write_private(key if is_key else control.state, data)
            if is_key:
                read_trust(folder)
            else:
                RunControl(folder).read_state()

        return Trial(f"{'key' if is_key else 'state'} {data[:200]!r}", do)

    yield draw


def _damaged(random: Random, good: bytes, longest: int) -> bytes:
    """Return a damaged file."""
    choice = random.random()
    if choice < 0.02:
        return good + b" " * random.choice((longest - len(good), longest))
    if choice < 0.04:
        return b"[" * random.choice((100, 100_000))
    if choice < 0.5 or good[:1] != b"{":
        return damage_bytes(random, good)
    return as_json(damage_value(random, msgspec.json.decode(good)))


CONTROL = Edge(requests, trials=60)
CONTROL_STATE = Edge(state, trials=200)
