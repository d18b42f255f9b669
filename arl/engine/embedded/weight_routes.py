"""Answer the requests of SGLang's HTTP protocol that concern weights.

    POST /update_weights_from_disk           read them in a thread ─► copy them between two passes
    POST /init_weights_update_group          join in a thread
    POST /update_weights_from_distributed    receive in a thread; with the version, copy what was received
    POST /destroy_weights_update_group, /weights_checker

Whatever may block is done in a thread, while the engine generates: files on slow disks, hosts that do not answer.
Weights take effect all at once.
"""

import asyncio
import os

from aiohttp import web
from aiohttp.web import Request, Response

from arl.clock import in_thread
from arl.engine.embedded.batching import EmbeddedEngine
from arl.engine.embedded.http_app import json_answer, read_body
from arl.errors import EngineError
from arl.sync.process_group import Receiver, bucket_of
from arl.sync.weight_messages import (
    Checked,
    Checksums,
    CheckWeights,
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
    """

    def __init__(self, engine: EmbeddedEngine, broadcast_seconds: float) -> None:
        self._engine = engine
        self._receiver = Receiver(broadcast_seconds)
        # One at a time reads, hashes or replaces the weights: what is read has the size of a model in memory, and the
        # hash of weights that change meanwhile is that of no version.
        self._turn = asyncio.Lock()

    def routes(self) -> list[web.RouteDef]:
        """Return what answers each path."""
        return [
            web.post("/update_weights_from_disk", self._update),
            web.post("/init_weights_update_group", self._join),
            web.post("/destroy_weights_update_group", self._leave),
            web.post("/update_weights_from_distributed", self._receive),
            web.post("/weights_checker", self._check_weights),
        ]

    async def _update(self, request: Request) -> Response:
        body = await read_body(request, UpdateFromDisk)
        version = self._version(body.weight_version)
        async with self._turn:
            state = await in_thread(self._engine.read_weights, _directory(body.model_path))
            await self._engine.load(WeightUpdate(version, body.model_path, state=state))
        return _served(version)

    async def _join(self, request: Request) -> Response:
        body = await read_body(request, InitGroup)
        await in_thread(self._receiver.join, body)
        return json_answer({"success": True, "message": "joined"})

    async def _leave(self, request: Request) -> Response:
        body = await read_body(request, LeaveGroup)
        await in_thread(self._receiver.leave, body.group_name)
        return json_answer({"success": True, "message": "left"})

    async def _receive(self, request: Request) -> Response:
        body = await read_body(request, UpdateFromDistributed)
        if body.names:
            self._engine.refuse_foreign_tensors(bucket_of(body))
            await in_thread(self._receiver.receive, body)
        if body.weight_version is None:
            return json_answer({"success": True, "message": "to take effect with the version"})
        version = self._version(body.weight_version)
        async with self._turn:
            await self._engine.load(WeightUpdate(version, state=self._receiver.take(body.group_name)))
        return _served(version)

    async def _check_weights(self, request: Request) -> Response:
        await read_body(request, CheckWeights)
        async with self._turn:
            found = await in_thread(self._engine.checksums)
        return json_answer(Checked([Checksums(found)]))

    def _version(self, given: str | None) -> int:
        """Return the version that weights shall have; None: that of the loaded ones."""
        try:
            return self._engine.loaded_version if given is None else version_number(given)
        except ValueError as error:
            raise EngineError(f"weight_version: {error}") from None


def _served(version: int) -> Response:
    return json_answer({"success": True, "message": f"serving version {version}"})


def _directory(path: str) -> str:
    """Return `path`, if it is a directory: a name would be looked for on the network."""
    if not os.path.isdir(path):
        raise EngineError(f"model_path {path} is no directory on this machine: give one with model.safetensors")
    return path
