"""arl's own engine as a backend: a server process of this interpreter, or an engine in this process. Torch-free."""

import sys
from contextlib import AbstractAsyncContextManager
from importlib import metadata

from arl.config.capabilities import Capabilities
from arl.config.engine_section import EngineConfig
from arl.config.recipe import Recipe
from arl.engine.backend import Backend, Installation, ServerSpec
from arl.engine.base import ReplicaEngine
from arl.errors import InputError
from arl.launch.base import Command
from arl.types import StartingVersions

SERVER_MODULE = "arl.engine.embedded.server"


class EmbeddedBackend(Backend):
    """Serve arl's own engine; see arl.engine.backend."""

    capabilities = Capabilities(
        kv_policies=("recompute", "keep"),
        transports=("file", "broadcast", "memory"),
        releases_memory=True,
        versions_per_token=True,
        deterministic_seeds=True,
        checksums=True,
        in_process=True,
        adapters=True,
    )

    def probe(self, config: EngineConfig) -> Installation:
        """See Backend.probe. The engine comes with arl; torch or transformers may be missing."""
        del config  # it runs under this interpreter
        try:
            version = " and ".join(f"{name} {metadata.version(name)}" for name in ("torch", "transformers"))
        except metadata.PackageNotFoundError as error:
            remedy = "pip install -e . in a clone of arl"
            raise InputError(f"engine.kind embedded: {error.name} is not installed; {remedy}") from error
        return Installation("the embedded engine with", version, sys.executable, self.capabilities)

    def refuse_model(self, path: str, recipe: Recipe) -> None:
        """See Backend.refuse_model. It refuses nothing, because it loads a model with the same code as the trainer."""

    def command(self, server: ServerSpec) -> Command:
        """See Backend.command."""
        config = server.recipe.engine
        options: dict[str, object] = {
            "--model": server.versions.served,
            "--version": server.versions.oldest,
            "--host": server.host,
            "--port": 0,
            "--slots": config.slots,
            "--dtype": config.dtype,
            "--head": server.recipe.train.head,
            "--threads": server.resources.threads,
            "--stream-interval": config.stream_interval,
            "--broadcast-seconds": server.recipe.deadlines.blocked_broadcast,
        }
        if server.recipe.publishes_adapters and (lora := server.recipe.train.lora):
            options |= {"--lora": lora.model_dump_json(), "--base": server.versions.base or server.versions.served}
        argv = [sys.executable, "-m", SERVER_MODULE]
        for name, value in options.items():
            argv += [name, str(value)]
        return Command(tuple(argv))

    def open_in_process(self, recipe: Recipe, versions: StartingVersions) -> AbstractAsyncContextManager[ReplicaEngine]:
        """See InProcessBackend.open_in_process."""
        from arl.engine.embedded.batching import EmbeddedEngine  # importing torch takes a second
        from arl.models.load import load_model
        from arl.models.lora import load_adapted

        config = recipe.engine
        costs = recipe.virtual

        def pass_seconds(prefill_tokens: int, decode_tokens: int) -> float:
            return costs.engine_pass + costs.decode_token * decode_tokens + costs.prefill_token * prefill_tokens

        served = versions.served
        if recipe.publishes_adapters and (lora := recipe.train.lora):
            model = load_adapted(versions.base or served, served, lora, config.dtype, head=recipe.train.head)
        else:
            model = load_model(served, config.dtype, head=recipe.train.head)
        return EmbeddedEngine(
            model,
            slots=config.slots,
            kv_policy=config.kv_policy,
            stream_interval=config.stream_interval,
            version=versions.oldest,
            step_cost=pass_seconds,
            load_seconds=costs.load,
        )
