"""Check what callers of the weight routes may do at the same time, also those that go away before they are answered."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import aiohttp
import pytest
import torch
from aiohttp.web import BaseRequest, StreamResponse
from transformers import PreTrainedModel

from arl.engine.embedded import batching
from arl.engine.embedded.batching import EmbeddedEngine
from arl.engine.embedded.http_edge import Routes
from arl.engine.embedded.routes import EngineRoutes
from arl.engine.embedded.thread_turns import ThreadTurns
from arl.errors import EngineError
from arl.launch.address import LOOPBACK
from arl.models.load import load_model
from arl.sync.loading import read_weights
from arl.sync.process_group import MOST_JOINING, Group
from arl.sync.stores import StoreEnd, serve_store
from arl.types import WeightUpdate
from tests.engine.conftest import Weights, within
from tests.engine.served import served
from tests.sync.test_receiver import broadcast_until_it_breaks

SECONDS = 30.0
GROUP_SECONDS = 8.0  # after which a thread gives up to wait for rank 0


class WatchedRoutes(EngineRoutes):
    """Say when requests come to one path, and when their handlers have ended."""

    def __init__(self, engine: EmbeddedEngine, model: str, path: str, seconds: float = SECONDS) -> None:
        super().__init__(engine, model, (), seconds)
        self._path = path
        self._came = asyncio.Semaphore(0)
        self._ended = asyncio.Semaphore(0)

    def routes(self) -> Routes:
        routes = super().routes()
        method, handler = routes[self._path]

        async def watched(request: BaseRequest) -> StreamResponse:
            await request.content.wait_eof()  # so that the handler does not wait for the body
            self._came.release()
            try:
                return await handler(request)
            finally:
                self._ended.release()

        return {**routes, self._path: (method, watched)}

    async def come_and_go(self, client: aiohttp.ClientSession, body: Any, begun: asyncio.Event | None = None) -> None:
        """Ask, and go away once the request has come (and `begun` is set), before it is answered."""
        asking = asyncio.create_task(post(client, self._path, body))
        await self._came.acquire()
        if begun is not None:
            await begun.wait()
        asking.cancel()
        await self._ended.acquire()


async def post(client: aiohttp.ClientSession, path: str, body: Any) -> tuple[int, str]:
    async with client.post(path, json=body) as answer:
        return answer.status, await answer.text()


class HeldReads:
    """Take the place of read_weights: each read waits until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.begun = asyncio.Event()
        self.paths: list[str] = []
        self._loop = asyncio.get_running_loop()

    def __call__(self, path: str, model: PreTrainedModel) -> dict[str, torch.Tensor]:
        self.paths.append(path)
        self._loop.call_soon_threadsafe(self.begun.set)
        assert self.let_go.wait(SECONDS)
        return read_weights(path, model)


def test_a_model_is_read_only_after_the_one_of_a_caller_that_has_gone_is_out_of_memory(
    old: Weights, new: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        reads = HeldReads()
        monkeypatch.setattr(batching, "read_weights", reads)
        body = {"model_path": old.path, "weight_version": "1"}
        async with EmbeddedEngine(load_model(old.path, "float32"), slots=2) as engine:
            routes = WatchedRoutes(engine, old.path, "/update_weights_from_disk")
            try:
                async with served(routes) as client:
                    await routes.come_and_go(client, body, reads.begun)
                    for _ in range(5):
                        await routes.come_and_go(client, body)
                    reads.let_go.set()
                    last = {"model_path": new.path, "weight_version": "2"}
                    assert (await post(client, "/update_weights_from_disk", last))[0] == 200
            finally:
                reads.let_go.set()
            assert reads.paths == [old.path, new.path], "callers that wait and go away read nothing"
            assert engine.loaded_version == 2

    within(scenario, SECONDS)


def test_a_turn_that_does_not_come_in_time_is_an_error_and_the_turn_of_a_lost_caller_ends_with_its_thread() -> None:
    async def scenario() -> None:
        turns = ThreadTurns("the weights", 0.05)
        let_go = threading.Event()

        async def hold() -> None:
            async with turns:
                await turns.run(let_go.wait, SECONDS)

        holding = asyncio.create_task(hold())
        await asyncio.sleep(0)
        holding.cancel()
        await asyncio.wait([holding])
        assert holding.cancelled()
        try:
            with pytest.raises(EngineError, match=r"the weights: others still read or replace them after 0\.05 s"):
                await hold()
        finally:
            let_go.set()
        patient = ThreadTurns("the weights", SECONDS)
        async with patient:
            with pytest.raises(ZeroDivisionError):
                await patient.run(divmod, 1, 0)
        async with patient:
            assert await patient.run(divmod, 7, 2) == (3, 1)

    within(scenario, SECONDS)


def test_a_thread_that_fails_when_its_caller_has_gone_leaves_no_traceback_in_the_log() -> None:
    async def scenario() -> None:
        told: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        turns = ThreadTurns("the weights", SECONDS)
        let_go = threading.Event()

        def fail() -> None:
            assert let_go.wait(SECONDS)
            raise OSError

        async def read() -> None:
            async with turns:
                await turns.run(fail)

        reading = asyncio.create_task(read())
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
        let_go.set()
        async with turns:  # when the thread has ended
            gc.collect()  # asyncio tells of an unseen failure when its task is collected
        assert told == []

    within(scenario, SECONDS)


class ObservedEngine(EmbeddedEngine):
    """Record what is done with its weights, and hold up the checker until it is let go."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, slots=2)
        self.done: list[str] = []
        self.checking = asyncio.Event()
        self.asked = asyncio.Event()
        self.let_go = threading.Event()
        self._loop = asyncio.get_running_loop()

    def checksums(self) -> dict[str, str]:
        self._loop.call_soon_threadsafe(self.checking.set)
        assert self.let_go.wait(SECONDS)
        found = super().checksums()
        self.done.append("checked")
        return found

    async def load(self, update: WeightUpdate) -> None:
        self.done.append("loaded")
        await super().load(update)

    @property
    def num_open(self) -> int:
        """Notice that what flushes is about to load."""
        self.asked.set()
        return super().num_open


def test_broadcast_weights_are_not_loaded_while_the_checker_reads_the_old_ones(old: Weights) -> None:
    async def scenario() -> None:
        async with ObservedEngine(load_model(old.path, "float32")) as engine:
            try:
                async with served(EngineRoutes(engine, old.path, (), SECONDS)) as client:
                    checking = asyncio.create_task(post(client, "/weights_checker", {"action": "checksum"}))
                    await engine.checking.wait()
                    empty: dict[str, Any] = {"names": [], "dtypes": [], "shapes": [], "group_name": "none"}
                    body = {**empty, "weight_version": "1", "flush_cache": True}
                    loading = asyncio.create_task(post(client, "/update_weights_from_distributed", body))
                    await engine.asked.wait()
                    engine.let_go.set()
                    assert (await checking)[0] == 200
                    assert (await loading)[0] == 400, "nothing was broadcast"
            finally:
                engine.let_go.set()
            assert engine.done == ["checked", "loaded"]

    within(scenario, SECONDS)


@contextmanager
def store_of(name: str) -> Iterator[tuple[StoreEnd, dict[str, Any]]]:
    """Serve a store where rank 0 has not come yet, and yield the body with which an engine joins the group."""
    end = serve_store(LOOPBACK, SECONDS)
    body = {"master_address": LOOPBACK, "master_port": end.port, "rank_offset": 1, "world_size": 2}
    yield end, {**body, "backend": "gloo", "group_name": name}
    end.close()


@asynccontextmanager
async def joining(old: Weights) -> AsyncIterator[tuple[WatchedRoutes, aiohttp.ClientSession]]:
    async with EmbeddedEngine(load_model(old.path, "float32"), slots=2) as engine:
        routes = WatchedRoutes(engine, old.path, "/init_weights_update_group", GROUP_SECONDS)
        async with served(routes) as client:
            yield routes, client


def test_threads_that_join_are_counted_after_their_callers_have_gone(old: Weights) -> None:
    async def scenario() -> None:
        with store_of("late") as (_, body):
            async with joining(old) as (routes, client):
                for number in range(MOST_JOINING):
                    await routes.come_and_go(client, {**body, "group_name": f"late {number}"})
                status, answer = await post(client, "/init_weights_update_group", body)
                assert status == 400
                assert f"{MOST_JOINING} groups are being joined" in answer

    within(scenario, SECONDS)


def test_a_group_that_is_joined_after_its_caller_has_gone_is_closed(old: Weights) -> None:
    async def scenario() -> None:
        with store_of("late") as (end, body):
            async with joining(old) as (routes, client):
                await routes.come_and_go(client, body)
                rank_0 = await asyncio.to_thread(Group, end, "late", 0, 2, "gloo", SECONDS)
                with pytest.raises(RuntimeError, match="by peer"):
                    await asyncio.to_thread(broadcast_until_it_breaks, rank_0)
                status, answer = await post(client, "/destroy_weights_update_group", {"group_name": "late"})
                assert status == 400
                assert "group late is not one of []" in answer

    within(scenario, SECONDS)
