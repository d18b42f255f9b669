"""Carry new weights by every transport: what arrives, in which order, and what happens to engines that fail."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from arl.engine.router import Router
from arl.errors import DeadlineError, EngineError
from arl.sync.buckets import checksums
from arl.sync.loading import read_weights
from arl.types import Transport
from tests.engine.conftest import (
    CARRIED,
    SWAPPED_TOKENS,
    Opened,
    Publish,
    ServerProcess,
    Weights,
    ask,
    complete,
    connect,
    start_server,
    within,
)
from tests.sync.sender import ThreadSender


@pytest.mark.parametrize(
    ("kind", "transport"), [case for case in CARRIED if "file" not in str(case)], indirect=["kind"]
)
def test_a_request_in_mid_generation_takes_the_new_weights_whatever_carries_them(
    opened: Opened, publish: Publish, transport: Transport, old: Weights, new: Weights
) -> None:
    async def scenario() -> None:
        async with opened() as engine:
            version = engine.loaded_version + 1
            spoke, said = asyncio.Event(), list[tuple[int, float, int]]()

            async def listen() -> None:
                async for new in engine.generate(ask("open", tokens=SWAPPED_TOKENS)):
                    said.extend(zip(new.token_ids, new.logprobs, new.policy_versions, strict=True))
                    spoke.set()

            open_request = asyncio.create_task(listen())
            await spoke.wait()
            await engine.update_weights(publish(transport, version, new.path))
            await open_request
            ids, logprobs, versions = zip(*said, strict=True)
            assert set(versions) == {version - 1, version}
            assert list(versions) == sorted(versions)
            is_new = np.array(versions) == version
            expected = np.where(is_new, new.logprobs((1, 2, 3), ids), old.logprobs((1, 2, 3), ids))
            np.testing.assert_allclose(logprobs, expected, rtol=0, atol=2e-4)
            after = await complete(engine, ask("after", tokens=50))
            np.testing.assert_allclose(after.logprobs, new.logprobs((1, 2, 3), after.token_ids), rtol=0, atol=2e-4)

    within(scenario)


BLOCKED = 4.0  # seconds: half of the deadline, which only the engine that stops uses up


@pytest.fixture
def servers(old: Weights, tmp_path: Path) -> Iterator[list[ServerProcess]]:
    running = [start_server(old.path, tmp_path / f"log{i}", broadcast_seconds=BLOCKED) for i in range(3)]
    yield running
    for server in running:
        server.process.kill()
        server.process.wait()


def test_an_engine_stopped_in_mid_broadcast_is_given_up_and_the_others_get_the_version_in_a_new_group(
    old: Weights, new: Weights, servers: list[ServerProcess]
) -> None:
    sender = ThreadSender(old.path, seconds=2 * BLOCKED)
    expected = checksums(read_weights(new.path), torch.float32)
    first = sender.publish(1, old.path)
    update = msgspec.structs.replace(sender.publish(2, new.path), checksums=expected)

    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            router = Router([None] * len(servers), sender=sender.shared)
            engines, slots = [], []
            for slot, server in enumerate(servers):
                connection = connect(server.url, swap_seconds=2 * BLOCKED, sender=sender.shared)
                engines.append(await stack.enter_async_context(connection))
                slots.append(await router.fill(slot, engines[-1]))
            await router.update_weights(first)
            doomed, *others = engines

            def strike(group: str) -> None:
                if group == sender.sent[1]:
                    os.kill(servers[0].process.pid, signal.SIGSTOP)

            sender.on_bucket = strike
            report = await router.update_weights(update)
            assert report.version == router.loaded_version == 2
            assert {engine.loaded_version for engine in others} == {2}, [slot.loss for slot in slots]
            assert doomed.loaded_version == 1
            assert isinstance(slots[0].loss, DeadlineError)
            assert not any(slot.lost.is_set() for slot in slots[1:])
            assert len(sender.sent) == len({*sender.sent}) + 1 == 3, "one group, used twice, and that of the survivors"
            after = await complete(router, ask("after", tokens=20))
            np.testing.assert_allclose(after.logprobs, new.logprobs((1, 2, 3), after.token_ids), rtol=0, atol=2e-4)

    within(scenario)


@pytest.mark.parametrize(("kind", "transport"), CARRIED, indirect=["kind"])
def test_checked_weights_pass_when_equal_and_name_the_tensor_that_is_not(
    opened: Opened, publish: Publish, transport: Transport, new: Weights, tmp_path: Path
) -> None:
    state = read_weights(new.path)
    corrupted = tmp_path / "corrupted"
    corrupted.mkdir()
    name = "model.layers.1.mlp.up_proj.weight"
    other = {**load_file(Path(new.path) / "model.safetensors")}
    other[name][3, 5] += 1e-6
    save_file(other, corrupted / "model.safetensors")
    expected = checksums(state, torch.float32)

    async def scenario() -> None:
        async with opened() as engine:
            version = engine.loaded_version + 1
            good, bad = publish(transport, version, new.path), publish(transport, version + 1, str(corrupted))
            await engine.update_weights(msgspec.structs.replace(good, checksums=expected))
            with pytest.raises(
                EngineError, match=rf"{name} of version {version + 1} is not what the trainer published"
            ):
                await engine.update_weights(msgspec.structs.replace(bad, checksums=expected))

    within(scenario)
