"""Check the commands by which a server is given new weights, and their order."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from arl.errors import EngineError
from arl.sync.buckets import TensorSpec
from arl.sync.group_sender import GroupSender, Rendezvous
from arl.sync.weight_loader import MemoryTag, WeightLoader, _handles
from arl.types import WeightUpdate

BUCKET = [TensorSpec("a", "float32", (2, 3))]
LAST = [TensorSpec("b", "bfloat16", (4,))]


class Recorded:
    """Record the commands as `name version`; `refused` is answered by an error."""

    url = "http://server"

    def __init__(self, refused: str = "nothing") -> None:
        self.sent: list[str] = []
        self._refused = refused

    async def load_directory(self, path: str, version: int) -> None:
        self._record("load_directory", version)

    async def map_bucket(self, handles: Sequence[bytes], version: int | None) -> None:
        self._record("map_bucket", version)

    async def join_group(self, name: str, at: Rendezvous, first_rank: int, world_size: int) -> None:
        self._record("join_group")

    async def receive_bucket(self, group: str, bucket: Sequence[TensorSpec], version: int | None) -> None:
        self._record("receive_bucket", version)

    async def leave_group(self, name: str) -> None:
        self._record("leave_group")

    async def release_memory(self, tags: Sequence[MemoryTag]) -> None:
        self._record("release_memory")

    async def resume_memory(self, tag: MemoryTag) -> None:
        self._record("resume_memory")

    async def checksums(self) -> dict[str, str]:
        return {}

    def _record(self, name: str, version: int | None = None) -> None:
        self.sent.append(name if version is None else f"{name} {version}")
        if name == self._refused:
            raise EngineError(f"{name} refused")


class Sender:
    """Stand for a trainer."""

    buckets: Sequence[Sequence[TensorSpec]] = [BUCKET, LAST]

    async def join(self, group: str, world_size: int) -> Rendezvous:
        return Rendezvous("host", 1, "gloo")

    async def send(self, group: str, version: int) -> None: ...

    async def leave(self, group: str) -> None: ...


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
    assert commands_of(WeightUpdate(3, str(tmp_path), "ipc")) == ["|", "map_bucket", "map_bucket 3"]
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "1.handles").write_bytes(b"of rank 1")
    assert _handles(WeightUpdate(3, str(tmp_path), "ipc"), first_rank=1, workers=1) == [(b"of rank 1",)]
    (tmp_path / "empty").mkdir()
    with pytest.raises(EngineError, match="there are no handles of version 3"):
        commands_of(WeightUpdate(3, str(tmp_path / "empty"), "ipc"))


def test_a_group_is_joined_before_the_pause_and_the_last_bucket_has_the_version() -> None:
    update = WeightUpdate(3, transport="broadcast")
    assert commands_of(update) == ["join_group", "|", "receive_bucket", "receive_bucket 3"]


def test_a_bucket_of_handles_that_is_refused_leaves_mixed_weights_until_a_version_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "1.handles").write_bytes(b"handles")

    async def scenario() -> None:
        server = Recorded(refused="map_bucket")
        loader = WeightLoader(server, None, workers=1)
        with pytest.raises(EngineError, match="map_bucket refused"):
            await loader.load(WeightUpdate(3, str(tmp_path), "ipc"))
        assert loader.is_mixed
        await loader.load(WeightUpdate(3, "v3"))
        assert not loader.is_mixed

    asyncio.run(scenario())
