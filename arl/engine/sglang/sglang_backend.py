"""SGLang as a backend: servers under an interpreter of their own, driven over HTTP. Torch-free."""

from contextlib import AbstractAsyncContextManager

from msgspec.structs import replace

from arl.config.capabilities import Capabilities
from arl.config.engine_section import EngineConfig
from arl.config.recipe import Recipe
from arl.data.model_limits import model_config
from arl.engine.backend import Installation, ServerSpec
from arl.engine.base import ReplicaEngine
from arl.engine.sglang import server_command
from arl.engine.sglang.flags import refuse_contradictions
from arl.engine.sglang.installed import TESTED, find_sglang, interpreter
from arl.errors import InputError
from arl.launch.base import Command
from arl.sync.group_sender import GroupSender

REMEDIES = {
    "engine.kv_policy": "reports only the last version of a request, not which one sampled each token; use recompute, "
    "or SGLang 0.5.18 or newer",
    "sync.check": "cannot be made to report checksums of its weights; leave it out, or use SGLang 0.5.20 or newer",
}


class SGLangBackend:
    """Serve SGLang; see arl.engine.backend."""

    capabilities = Capabilities(
        kv_policies=("recompute", "keep"),
        transports=("file", "broadcast", "ipc"),
        releases_memory=True,
        versions_per_token=True,
        deterministic_seeds=False,  # only with --enable-deterministic-inference, which no CPU attention supports
        checksums=True,
        tensor_parallel=True,
        own_interpreter=True,
        reserved_flags=server_command.RESERVED_FLAGS,
        reserved_variables=server_command.RESERVED_VARIABLES,
        remedies=REMEDIES,
    )

    def probe(self, config: EngineConfig) -> Installation:
        """See Backend.probe. It runs the interpreter that `config.python` names, and checks `config.args`."""
        refuse_contradictions(config)
        found = find_sglang(config.python)
        can = replace(self.capabilities, versions_per_token=found.reports_spans, checksums=found.reports_checksums)
        note = "" if found.version == TESTED else f"arl is tested with {TESTED}"
        return Installation("SGLang", found.version, found.path, can, note, found.lacking)

    def refuse_model(self, path: str, recipe: Recipe) -> None:
        """See Backend.refuse_model."""
        config = model_config(path)
        if getattr(config, "mlp_bias", False):
            raise InputError(
                f"model.path {path}: its MLPs have biases (mlp_bias), which SGLang's Llama leaves out without a word; "
                "choose another model, or use engine.kind embedded"
            )
        if recipe.sync.check and config.model_type == "gemma":
            raise InputError(
                f"sync.check true: SGLang adds one to the norms of {path} when it loads them, and rounds, so what was "
                "published cannot be recovered from what it holds; leave it out for Gemma, or use engine.kind embedded"
            )

    def command(self, server: ServerSpec) -> Command:
        """See Backend.command."""
        python = interpreter(server.recipe.engine.python)
        return Command(tuple(server_command.command(server, python)), server_command.environment(server, python))

    def connect(
        self, url: str, server: ServerSpec, key: str, sender: GroupSender | None
    ) -> AbstractAsyncContextManager[ReplicaEngine]:
        """See Backend.connect."""
        from arl.engine.http.engine_client import connect_http  # importing aiohttp takes a tenth of a second

        return connect_http(url, server, key, sender)
