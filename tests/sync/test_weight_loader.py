"""Check the commands by which a server is given new weights, and their order."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from arl.errors import EngineError
from arl.sync.weight_loader import WeightLoader, _handles
from arl.types import WeightUpdate


class Recorded:
    """Record the commands of a WeightServer, as (name, last argument); `refused` is answered by an error."""

    def __init__(self, refused: str = "") -> None:
        self.sent: list[tuple[str, object]] = []
        self._refused = refused

    def __getattr__(self, name: str) -> Callable[..., Awaitable[None]]:
        async def command(*arguments: object) -> None:
            self.sent.append((name, arguments[-1]))
            if name == self._refused:
                raise EngineError(f"{name} refused")

        return command


def load(update: WeightUpdate) -> list[tuple[str, object]]:
    server = Recorded()
    asyncio.run(WeightLoader(cast(Any, server), None, workers=1).load(update))
    return server.sent


def test_the_handles_of_a_version_are_sent_at_once_to_each_worker_those_of_the_rank_on_its_device(
    tmp_path: Path,
) -> None:
    for rank in ("0", "1"):
        (tmp_path / rank).mkdir()
        (tmp_path / rank / "handles").write_bytes(b"of rank " + rank.encode())
    update = WeightUpdate(3, str(tmp_path), "ipc")
    assert load(update) == [("map_weights", 3)]
    assert _handles(update, first_rank=0, workers=2) == [b"of rank 0", b"of rank 1"]
    assert _handles(update, first_rank=1, workers=1) == [b"of rank 1"]


def test_handles_that_are_refused_leave_mixed_weights_until_a_version_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "handles").write_bytes(b"handles")

    async def scenario() -> None:
        server = Recorded(refused="map_weights")
        loader = WeightLoader(cast(Any, server), None, workers=1)
        with pytest.raises(EngineError, match="map_weights refused"):
            await loader.load(WeightUpdate(3, str(tmp_path), "ipc"))
        assert loader.is_mixed
        await loader.load(WeightUpdate(3, "v3"))
        assert not loader.is_mixed

    asyncio.run(scenario())
