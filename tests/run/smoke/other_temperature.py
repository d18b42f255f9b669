"""A backend of a user's own that forgets the temperature: its answers are sampled, and recorded, at 1.3 times it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from arl.engine.backend import ServerSpec
from arl.engine.base import ReplicaEngine
from arl.engine.embedded.embedded_backend import EmbeddedBackend
from arl.sync.group_sender import GroupSender
from arl.types import GenerateRequest, Increment

FACTOR = 1.3


class HotEngine:
    """Sends every request on with another temperature."""

    def __init__(self, engine: ReplicaEngine) -> None:
        self._engine = engine

    def generate(self, request: GenerateRequest) -> AsyncIterator[Increment]:
        sampling = replace(request.sampling, temperature=FACTOR * request.sampling.temperature)
        return self._engine.generate(replace(request, sampling=sampling))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class HotBackend(EmbeddedBackend):
    """Connects to the embedded engine's server through a HotEngine."""

    @asynccontextmanager
    async def connect(
        self, url: str, server: ServerSpec, key: str, sender: GroupSender | None
    ) -> AsyncIterator[HotEngine]:
        async with super().connect(url, server, key, sender) as engine:
            yield HotEngine(engine)
