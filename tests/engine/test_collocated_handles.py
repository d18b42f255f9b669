"""Every rank shares its own copy of the weights, and the engine on its device loads that: real ranks, real SGLang."""

import asyncio
import contextlib
from pathlib import Path

import msgspec
import pytest

from arl.errors import EngineError
from arl.types import WeightUpdate
from tests.engine.conftest import ServerProcess, Weights, connect, start_sglang, within
from tests.train.synthetic import batch
from tests.train.workers import forked, init

pytestmark = [pytest.mark.sglang, pytest.mark.slow]


def names(directory: str) -> set[str]:
    return {entry.name for entry in Path(directory).iterdir()}


def spoil(update: WeightUpdate, rank: int) -> None:
    """Change what one rank has shared."""
    first, *_ = sorted(Path(update.path, str(rank)).glob("*.bytes"))
    content = bytearray(first.read_bytes())
    content[1] ^= 1
    first.write_bytes(content)


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.long), 4])
def test_each_engine_holds_what_the_rank_on_its_device_has_shared(
    ranks: int, sglang_python: str, sglang_server: ServerProcess, old: Weights, tmp_path: Path
) -> None:
    """Two engines, on the first and on the last rank. Every weight is compared; a spoiled one is found there alone."""
    last = ranks - 1
    (tmp_path / "second").mkdir()
    second = start_sglang(sglang_python, old.path, tmp_path / "second" / "log")

    async def scene() -> None:
        async with contextlib.AsyncExitStack() as stack:
            engines = {
                0: await stack.enter_async_context(connect(sglang_server.url)),
                last: await stack.enter_async_context(connect(second.url, first_rank=last)),
            }
            version = engines[0].loaded_version
            shared = msgspec.structs.replace(
                init(Path(old.path), tmp_path / "published"),
                version=version,
                transport="ipc",
                bucket_bytes=100_000,
                sharing_ranks=ranks,
                checked_as="float32",
                kept_versions=2,
            )
            trainer, _ = await stack.enter_async_context(forked(shared, ranks))
            for step in (version, version + 1, version + 2):
                await trainer.step(batch(step, groups=4, size=4))
                update = await trainer.weights(step + 1)
                assert names(update.path) == {str(rank) for rank in range(ranks)}
                await asyncio.gather(*(engine.update_weights(update) for engine in engines.values()))
            assert names(shared.publish_directory) == {f"v{version + 2}", f"v{version + 3}"}
            spoil(update, last)
            await engines[0].update_weights(update)
            with pytest.raises(EngineError, match="is not what the trainer published"):
                await engines[last].update_weights(update)
            await trainer.stop()

    try:
        within(scene)
    finally:
        second.end()
