"""Check the commands by which a server is given new weights, and their order."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from arl.errors import EngineError
from arl.sync.buckets import TensorSpec
from arl.sync.group_sender import GroupSender, Rendezvous
from arl.sync.weight_loader import WeightLoader
from arl.sync.weight_messages import Checked, Checksums
from arl.types import WeightUpdate

BUCKET = [TensorSpec("a", "float32", (2, 3))]
LAST = [TensorSpec("b", "bfloat16", (4,))]


class Recorded:
    """Record the commands as `path version`; `refused` is answered by an error, the others by `answer`."""

    url = "http://server"

    def __init__(self, answer: bytes = b"{}", refused: str = "nothing") -> None:
        self.sent: list[str] = []
        self._answer = answer
        self._refused = refused

    async def command(self, path: str, body: Any = None) -> bytes:
        version = getattr(body, "weight_version", None)
        tags = getattr(body, "tags", ())
        given = [version] if version else []
        self.sent.append(" ".join([path, *given, *tags]))
        if path == self._refused:
            raise EngineError(f"{path} refused")
        return self._answer


class Sender:
    """Stand for a trainer whose broadcasts fail if `is_broken`."""

    def __init__(self, is_broken: bool = False) -> None:
        self.buckets: Sequence[Sequence[TensorSpec]] = [BUCKET, LAST]
        self.joined: list[str] = []
        self.left: list[str] = []
        self._is_broken = is_broken

    async def join(self, group: str, world_size: int) -> Rendezvous:
        assert world_size == 2
        self.joined.append(group)
        return Rendezvous("host", 1, "gloo")

    async def send(self, group: str, version: int) -> None:
        if self._is_broken:
            raise EngineError("the group broke")

    async def leave(self, group: str) -> None:
        self.left.append(group)


def commands_of(update: WeightUpdate) -> list[str]:
    """Return what a server is sent for `update`, with | where it must be paused."""

    async def load() -> list[str]:
        server = Recorded()
        loader = WeightLoader(server, GroupSender(Sender(), 5.0), workers=1)
        await loader.prepare(update)
        server.sent.append("|")
        await loader.load(update)
        return server.sent

    return asyncio.run(load())


def test_handles_are_sent_by_buckets_and_the_last_one_has_the_version(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    for number in (1, 2):
        (tmp_path / "0" / f"{number}.handles").write_bytes(b"handles")
    path = "/update_weights_from_tensor"
    assert commands_of(WeightUpdate(3, str(tmp_path), "ipc")) == ["|", path, f"{path} 3"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(EngineError, match="there are no handles of version 3"):
        commands_of(WeightUpdate(3, str(tmp_path / "empty"), "ipc"))


def test_a_group_is_joined_before_the_pause_and_the_last_bucket_has_the_version() -> None:
    path = "/update_weights_from_distributed"
    update = WeightUpdate(3, transport="broadcast")
    assert commands_of(update) == ["/init_weights_update_group", "|", path, f"{path} 3"]


def test_a_bucket_of_handles_that_is_refused_leaves_mixed_weights_until_a_version_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "1.handles").write_bytes(b"handles")

    async def scenario() -> None:
        server = Recorded(refused="/update_weights_from_tensor")
        loader = WeightLoader(server, None, workers=1)
        with pytest.raises(EngineError, match="update_weights_from_tensor refused"):
            await loader.load(WeightUpdate(3, str(tmp_path), "ipc"))
        assert loader.is_mixed
        await loader.load(WeightUpdate(3, "v3"))
        assert not loader.is_mixed

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("answer", "rule"),
    [
        (Checked([Checksums({"a": "1"})]), None),
        (Checked([Checksums({"a": "2"})]), "a of version 3 is not what the trainer published"),
        (Checked([Checksums({"a": "1"})] * 2), "weights_checker: too many values"),
        ({"ranks": None}, "weights_checker: Expected `array`"),
    ],
)
def test_checksums_are_compared_and_an_answer_of_several_workers_or_none_is_refused(
    answer: object, rule: str | None
) -> None:
    async def scenario() -> None:
        server = Recorded(msgspec.json.encode(answer))
        loader = WeightLoader(server, None, workers=1)
        await loader.check(WeightUpdate(3, checksums={"a": "1"}))

    if rule is None:
        asyncio.run(scenario())
    else:
        with pytest.raises(EngineError, match=rule):
            asyncio.run(scenario())
