"""`arl` with two more built-in engines, so that one smoke test meets engines that work and engines that do not.

hot       forgets the temperature: its answers are sampled, and recorded, at 1.3 times it
refusing  ends before it is ready, as a server does that does not know the model
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from arl import cli
from arl.engine.backend import BUILT_IN, ServerSpec
from arl.engine.base import ReplicaEngine
from arl.engine.embedded.embedded_backend import EmbeddedBackend
from arl.launch.base import Command
from arl.sync.group_sender import GroupSender
from arl.types import GenerateRequest, Increment

FACTOR = 1.3
REFUSAL = "Model architectures ['FancyForCausalLM'] are not supported"


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


class RefusingBackend(EmbeddedBackend):
    """Starts a server that gives up at once."""

    def command(self, server: ServerSpec) -> Command:
        del server
        return Command((sys.executable, "-c", f"raise ValueError({REFUSAL!r})"))


def main() -> None:
    """Run `arl` with the engines of this file beside its own."""
    BUILT_IN["hot"] = f"{__name__}:HotBackend"
    BUILT_IN["refusing"] = f"{__name__}:RefusingBackend"
    cli.main()
