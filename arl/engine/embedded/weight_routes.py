"""Answer the requests of SGLang's HTTP protocol that concern weights.

    POST /update_weights_from_disk           read them in a thread ─► copy them between two passes
    POST /init_weights_update_group          join in a thread
    POST /update_weights_from_distributed    receive in a thread; with the version, copy what was received
    POST /destroy_weights_update_group, /weights_checker

Whatever may block is done in a thread, while the engine generates: files on slow disks, hosts that do not answer.
Weights take effect all at once.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

from aiohttp.web import BaseRequest, Response

from arl.clock import in_thread
from arl.engine.embedded.batching import EmbeddedEngine
from arl.engine.embedded.http_edge import Routes, json_answer, read_body
from arl.engine.embedded.thread_turns import ThreadTurns
from arl.errors import EngineError
from arl.sync.node_copy import NODE_COPY, HeldVersion, NodeCopies
from arl.sync.process_group import Joining, Receiver, bucket_of
from arl.sync.weight_messages import (
    STAGES,
    Checked,
    Checksums,
    CheckWeights,
    GroupJoined,
    InitGroup,
    LeaveGroup,
    UpdateFromDisk,
    UpdateFromDistributed,
    version_number,
)
from arl.types import WeightUpdate


class WeightRoutes:
    """Handle the requests that concern the weights of one EmbeddedEngine.

    Args:
        engine: runs already, or will
        broadcast_seconds: after which a broadcast that does not move is given up, and a group that cannot be joined
        copies: of published files, shared with the other servers of this node; None: they are read where they are
    """

    def __init__(self, engine: EmbeddedEngine, broadcast_seconds: float, copies: NodeCopies | None) -> None:
        self._engine = engine
        self._seconds = broadcast_seconds
        self._copies = copies
        self._receiver = Receiver(broadcast_seconds)
        # One at a time reads, hashes or replaces the weights: what is read has the size of a model in memory, and the
        # hash of weights that change meanwhile is that of no version.
        self._turns = ThreadTurns("the weights", broadcast_seconds)

    def routes(self) -> Routes:
        """Return what answers each path."""
        return {
            "/update_weights_from_disk": ("POST", self._update),
            "/init_weights_update_group": ("POST", self._join),
            "/destroy_weights_update_group": ("POST", self._leave),
            "/update_weights_from_distributed": ("POST", self._receive),
            "/weights_checker": ("POST", self._check_weights),
        }

    async def _update(self, request: BaseRequest) -> Response:
        body = await read_body(request, UpdateFromDisk)
        version = self._version(body.weight_version)
        self._refuse_flush(body.flush_cache)
        with await self._hold(body.model_path) as held:
            if body.load_format == NODE_COPY:
                return json_answer({"success": True, "message": f"to be read from {held.path}"})
            async with self._turns:
                state = await self._turns.run(self._engine.read_weights, _directory(held.path))
                return await self._load(WeightUpdate(version, held.path, state=state))

    async def _hold(self, path: str) -> HeldVersion:
        """Return where to read the weights that lie at `path`."""
        if self._copies is None:
            return HeldVersion(path)
        try:
            return await in_thread(self._copies.hold, path)
        except OSError as error:
            raise EngineError(f"{path}: the weights cannot be read ({error})") from error

    async def _join(self, request: BaseRequest) -> Response:
        body = await read_body(request, InitGroup)
        joining = Joining()
        try:
            async with self._patience(f"group {body.group_name}: {body.master_address} does not answer"):
                await in_thread(self._receiver.join, body, joining)
        except BaseException:  # also if the caller has gone: a group that it does not know would never be left
            self._receiver.give_up(joining)
            raise
        return json_answer(GroupJoined(success=True, message=STAGES))

    async def _leave(self, request: BaseRequest) -> Response:
        body = await read_body(request, LeaveGroup)
        async with self._patience(f"group {body.group_name}: it was left, and is not closed"):
            await in_thread(self._receiver.leave, body.group_name)
        return json_answer({"success": True, "message": "left"})

    async def _receive(self, request: BaseRequest) -> Response:
        body = await read_body(request, UpdateFromDistributed)
        if body.names:
            self._engine.refuse_foreign_tensors(bucket_of(body))
            await in_thread(self._receiver.receive, body)
        if body.weight_version is None:
            return json_answer({"success": True, "message": "to take effect with the version"})
        version = self._version(body.weight_version)
        self._refuse_flush(body.flush_cache)
        async with self._turns:
            return await self._load(WeightUpdate(version, state=self._receiver.take(body.group_name)))

    async def _load(self, update: WeightUpdate) -> Response:
        await self._engine.load(update)
        return json_answer({"success": True, "message": f"serving version {update.version}"})

    async def _check_weights(self, request: BaseRequest) -> Response:
        await read_body(request, CheckWeights)
        async with self._turns:
            found = await self._turns.run(self._engine.checksums)
        return json_answer(Checked([Checksums(found)]))

    def _version(self, given: str | None) -> int:
        """Return the version that weights shall have; None: that of the loaded ones."""
        try:
            return self._engine.loaded_version if given is None else version_number(given)
        except ValueError as error:
            raise EngineError(f"weight_version: {error}") from None

    def _refuse_flush(self, wanted: bool) -> None:
        if wanted and self._engine.num_open:
            raise EngineError("flush_cache is true while requests are open: pause with mode abort, or send false")

    @contextlib.asynccontextmanager
    async def _patience(self, what: str) -> AsyncIterator[None]:
        """Give up what a thread does after the deadline of broadcasts. The thread ends by itself, or hangs alone."""
        try:
            async with asyncio.timeout(self._seconds) as scope:
                yield
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise EngineError(f"{what} after {self._seconds:g} s") from error


def _directory(path: str) -> str:
    """Return `path`, if it is a directory: a name would be looked for on the network."""
    if not os.path.isdir(path):
        raise EngineError(f"model_path {path} is no directory on this machine: give one with model.safetensors")
    return path
