"""Define the backend seam: everything that arl needs to know of one kind of engine server.

recipe ─► capabilities: what this kind can do at its best        refused while the recipe is read
preflight, arl doctor ─► probe: what is installed, and can do    refused before anything is started
launch ─► command: argv and environment of one server ─► "ready <url>" ─► connect: a ReplicaEngine
world virtual ─► open_in_process: a ReplicaEngine without a server

A backend is one folder, like arl/engine/embedded and arl/engine/sglang, or one file of yours.
"""

from contextlib import AbstractAsyncContextManager
from typing import Protocol, cast

from msgspec import Struct

from arl.config.capabilities import Capabilities, validate_supported
from arl.config.engine_section import EngineConfig
from arl.config.imports import check_seam, import_seam
from arl.config.recipe import Recipe
from arl.engine.base import ReplicaEngine
from arl.errors import RecipeError
from arl.launch.base import Command, Resources
from arl.sync.group_sender import GroupSender
from arl.types import StartingVersions

BUILT_IN = {
    "embedded": "arl.engine.embedded.embedded_backend:EmbeddedBackend",
    "sglang": "arl.engine.sglang.sglang_backend:SGLangBackend",
}


class Installation(Struct, frozen=True):
    """Hold what `probe` found.

    >>> str(Installation("SGLang", "0.5.20", "/opt/sglang/bin/python", Capabilities()))
    'SGLang 0.5.20 in /opt/sglang/bin/python'
    """

    name: str
    version: str
    place: str  # the interpreter that has it
    capabilities: Capabilities  # of this version: at most those of the backend
    note: str = ""  # what a user should know of it, for `arl doctor`
    lacking: tuple[str, ...] = ()  # what it needs on GPUs and has not got: packages, or another Python
    remedy: str = ""  # how to get an installation that lacks nothing
    # On GPUs: code, for `place`, of a function that prints a JSON list of arl.run.checks.Finding. Its argument: is the
    # run collocated?
    examination: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.version} in {self.place}"


class ServerSpec(Struct, frozen=True, kw_only=True):
    """Describe one engine server that a run starts."""

    recipe: Recipe
    versions: StartingVersions  # it begins with the oldest of them, which nobody deletes
    resources: Resources  # its threads and GPUs
    seed: int  # of this replica
    host: str  # the address to listen on
    certificate: str | None = None  # file of the one that it shows; None: it listens on loopback, without TLS
    replica: int = 0  # its number; in mode collocated replica i is on the GPUs of ranks from i · tensor_parallel on


class Backend(Protocol):
    """Represent one kind of engine server. It is made without arguments, and holds no state.

    Worked example. A backend for a server of your own that speaks SGLang's protocol, in `my_backend.py`:

        class MyBackend:
            capabilities = Capabilities(transports=("file",), versions_per_token=True)

            def probe(self, config: EngineConfig) -> Installation:
                if (path := shutil.which("my-server")) is None:
                    raise InputError("engine.kind my_backend:MyBackend: no my-server on PATH; pip install my-server")
                return Installation("my-server", importlib.metadata.version("my-server"), path, self.capabilities)

            def refuse_model(self, path: str, recipe: Recipe) -> None:
                "It serves every model as it was published."

            def command(self, server: ServerSpec) -> Command:
                argv = ("my-server", "--model", server.versions.served, "--host", server.host, "--port", "0")
                return Command(argv)

            def connect(self, url, server, key, sender):
                return connect_http(url, server, key, sender)     # arl.engine.http.engine_client

    and in the recipe:

        engine: {kind: my_backend:MyBackend}

    The server prints "ready <url>" on a line of its own when it is healthy, asks every caller for the bearer token in
    the environment variable ARL_RUN_KEY, and exits on SIGTERM. Where ARL_TLS is set and the address is beyond loopback,
    it serves TLS with certificate.pem and key.pem of that directory, and its url begins with https; the client refuses
    to send the key otherwise. A backend that differs little from a built-in one
    subclasses it: see tests/extending/my_backend.py.
    """

    @property
    def capabilities(self) -> Capabilities:
        """Return what this kind can do at its best. It must not probe: every recipe that is read asks for it."""

    def probe(self, config: EngineConfig) -> Installation:
        """Find out whether it is installed, in which version, and what this version can do.

        Raises:
            InputError: it is not installed; with the command that installs it.
        """

    def refuse_model(self, path: str, recipe: Recipe) -> None:
        """Check that it would serve the model in directory `path` as it was published.

        Raises:
            InputError: it would not, or not with this recipe; says what to use instead.
        """

    def command(self, server: ServerSpec) -> Command:
        """Return the process that serves `server`. It starts nothing."""

    def connect(
        self, url: str, server: ServerSpec, key: str, sender: GroupSender | None
    ) -> AbstractAsyncContextManager[ReplicaEngine]:
        """Connect to a server that has said it is ready. A backend that inherits this one speaks SGLang's protocol.

        Args:
            url: what it printed behind "ready "
            server: what `command` was given
            key: the run's secret, sent with each request
            sender: of weights that are broadcast, shared by the engines of the run; else None
        """
        from arl.engine.http.engine_client import connect_http  # importing aiohttp takes a tenth of a second

        return connect_http(url, server, key, sender)


class InProcessBackend(Backend, Protocol):
    """Represent a backend that can also generate in this process: one whose capabilities say `in_process`."""

    def open_in_process(self, recipe: Recipe, versions: StartingVersions) -> AbstractAsyncContextManager[ReplicaEngine]:
        """Make one engine with the oldest of `versions`; it ends with the context.

        It takes time from `arl.clock` and asyncio alone, never from the machine; `recipe.virtual` has the seconds that
        each of its operations costs.
        """


def find_backend(kind: str) -> Backend:
    """Return the backend that `engine.kind` names, after a check that it has every part.

    Raises:
        RecipeError: no such backend, or it lacks a part, or one has another signature; names the nearest example.
    """
    who = f"engine.kind {kind!r}"
    example = BUILT_IN["embedded"]
    found = import_seam(kind, "engine.kind", Backend, example, BUILT_IN)
    backend = found() if isinstance(found, type) else found
    can = backend.capabilities
    if not isinstance(can, Capabilities):
        raise RecipeError(
            f"{who}: capabilities is {type(can).__name__}, and must be arl.config.capabilities.Capabilities; "
            f"see {example} for a complete one"
        )
    if can.in_process:
        check_seam(backend, who, InProcessBackend, example)
    return cast(Backend, backend)


def find_in_process_backend(kind: str) -> InProcessBackend:
    """Return the backend of a recipe that was read with world virtual, which only these accept."""
    backend = find_backend(kind)
    assert backend.capabilities.in_process, f"engine.kind {kind}: the recipe was not validated"
    return cast(InProcessBackend, backend)


def probe_backend(recipe: Recipe) -> Installation:
    """Look for the recipe's backend, and compare what is installed with what the recipe asks for.

    Raises:
        InputError: it is not installed, this version lacks something, or it would not serve the recipe's model right.
    """
    backend = find_backend(recipe.engine.kind)
    found = backend.probe(recipe.engine)
    validate_supported(recipe, found.capabilities, str(found))
    if recipe.model.path is not None:
        backend.refuse_model(recipe.model.path, recipe)
    return found
