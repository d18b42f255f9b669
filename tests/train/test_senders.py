"""A real trainer rank that broadcasts to real engine servers while it trains."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from arl.engine.router import Router
from arl.errors import DeadlineError, EngineError
from arl.sync.group_sender import GroupSender
from tests.engine.conftest import ServerProcess, connect, start_server
from tests.train.synthetic import batch
from tests.train.workers import forked, init

BLOCKED = 4.0  # seconds after which the broadcast to an engine that stops is given up; they are waited out


@pytest.fixture
def servers(tiny: Path, tmp_path: Path) -> Iterator[list[ServerProcess]]:
    running = [start_server(str(tiny), tmp_path / f"log{i}", broadcast_seconds=BLOCKED) for i in range(2)]
    yield running
    for server in running:
        server.process.kill()
        server.process.wait()


def test_engines_get_what_was_trained_and_one_that_stops_in_between_costs_the_other_time_alone(
    tiny: Path, tmp_path: Path, servers: list[ServerProcess]
) -> None:
    """Every weight is compared, by checksum. The stopped engine never reads what is sent; the trainer steps on."""
    broadcast = msgspec.structs.replace(
        init(tiny, tmp_path), transport="broadcast", bucket_bytes=1000, broadcast_seconds=BLOCKED, checked_as="float32"
    )

    async def scene() -> None:
        async with forked(broadcast, 1) as (trainer, _):
            assert len(trainer.buckets) > 5
            sender = GroupSender(trainer, 2 * BLOCKED)
            stopped = connect(servers[0].url, swap_seconds=2 * BLOCKED, sender=sender)
            other = connect(servers[1].url, swap_seconds=2 * BLOCKED, sender=sender)
            async with stopped, other:
                router = Router([None, None], sender=sender)
                seat = await router.fill(0, stopped)
                await router.fill(1, other)
                await trainer.step(batch(4, groups=4, size=4))
                update = await trainer.weights(5)
                assert update.transport == "broadcast"
                assert len(update.checksums) == len(trainer.tensors)
                await router.update_weights(update)
                assert (stopped.loaded_version, other.loaded_version) == (5, 5)
                servers[0].process.send_signal(signal.SIGSTOP)
                await trainer.step(batch(5, groups=4, size=4))
                swap = asyncio.create_task(router.update_weights(await trainer.weights(6)))
                await trainer.step(batch(6, groups=4, size=4))
                assert (await swap).version == 6
                assert isinstance(seat.loss, DeadlineError)
                await router.update_weights(await trainer.weights(7))
                assert (stopped.loaded_version, other.loaded_version) == (5, 7)
            servers[0].process.kill()
            async with connect(servers[1].url, sender=GroupSender(trainer, 60.0)) as again:  # a new life, a new group
                await trainer.step(batch(7, groups=4, size=4))
                update = await trainer.weights(8)
                await again.update_weights(update)
                spoiled = dict(update.checksums, **{"lm_head.weight": "another"})
                with pytest.raises(EngineError, match=r"lm_head.weight of version 8 is not what the trainer"):
                    await again.update_weights(msgspec.structs.replace(update, checksums=spoiled))
            await trainer.stop()

    asyncio.run(scene())
