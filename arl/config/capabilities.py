"""State what an engine backend can do, and refuse a recipe that asks for more."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from arl.types import Transport

if TYPE_CHECKING:
    from arl.config.recipe import Recipe

KvPolicy = Literal["recompute", "keep"]


class Capabilities(Struct, frozen=True, kw_only=True):
    """Declare what one backend can do. A backend is never asked for what it does not declare here.

    >>> Capabilities(kv_policies=("recompute", "keep"), versions_per_token=True).keeps_cache
    True
    """

    kv_policies: tuple[KvPolicy, ...] = ("recompute",)
    """What may happen to the cache of open requests at a swap: engine.kv_policy."""
    transports: tuple[Transport, ...] = ("file",)
    """How weights can reach it: sync.transport."""
    releases_memory: bool = False
    """It gives its memory back while the trainer has the device: mode collocated."""
    versions_per_token: bool = False
    """It reports which version sampled each token of a request that a swap interrupted."""
    deterministic_seeds: bool = False
    """Equal seeds, weights and inputs sample equal tokens: world virtual."""
    checksums: bool = False
    """It reports the sha256 of each weight that it holds, by its published name: sync.check."""
    in_process: bool = False
    """It can generate in this process, on virtual time: world virtual. It then has `open_in_process`."""
    tensor_parallel: bool = False
    """One replica can use several GPUs: engine.tensor_parallel."""
    own_interpreter: bool = False
    """Its servers run under an interpreter of their own: engine.python."""
    reserved_flags: Mapping[str, str] | None = None
    """Flags that arl gives to its servers, and where each value comes from; engine.args may add any others.
    None: its servers take no flags of the user."""
    reserved_variables: Mapping[str, str] = {}
    """Environment variables that arl gives to its servers, with the value and the reason; engine.environment may add
    any others."""

    @property
    def keeps_cache(self) -> bool:
        """Return whether kv_policy keep works: it needs the version of each token of a call that spans a swap."""
        return "keep" in self.kv_policies and self.versions_per_token


def validate_supported(recipe: "Recipe", can: Capabilities, who: str) -> None:
    """Compare what `recipe` asks for with what the backend called `who` can do.

    Raises:
        ValueError: names the field, its value, the backend, and the remedy.
    """
    for field, value, is_possible, remedy in _requests(recipe, can):
        if not is_possible:
            raise ValueError(f"{field} {value}: {who} {remedy}")
    reserved = can.reserved_flags or {}
    for argument in recipe.engine.args:
        flag = argument.partition("=")[0]
        if not flag.startswith("--"):
            continue
        for name, source in reserved.items():
            if name.startswith(flag):  # servers take the beginning of a flag for the flag, such as --tp
                raise ValueError(f"engine.args {flag}: arl gives it ({source}); leave it out")
    for name in recipe.engine.environment:
        if name in can.reserved_variables:
            raise ValueError(f"engine.environment {name}: arl sets it ({can.reserved_variables[name]}); leave it out")


def _requests(recipe: "Recipe", can: Capabilities) -> Iterator[tuple[str, object, bool, str]]:
    """Yield what a recipe asks of its backend: field, value, whether it is possible, and a remedy."""
    engine = recipe.engine
    if recipe.world_traits.one_process:
        possible = can.in_process and can.deterministic_seeds
        remedy = "cannot generate in this process as this world does; use embedded, or world wall"
        yield ("engine.kind", engine.kind, possible, remedy)
    if engine.kv_policy == "keep":
        remedy = "cannot keep its cache at a swap; use recompute"
        yield ("engine.kv_policy", "keep", can.keeps_cache, remedy)
    if recipe.sync.check:
        remedy = "does not report checksums of its weights; leave it out"
        yield ("sync.check", "true", can.checksums, remedy)
    if recipe.mode == "collocated":
        remedy = "cannot give up its memory while the trainer works; use disaggregated"
        yield ("mode", "collocated", can.releases_memory, remedy)
    if engine.tensor_parallel > 1:
        remedy = "runs a replica on one GPU; leave it out, and use more replicas"
        yield ("engine.tensor_parallel", engine.tensor_parallel, can.tensor_parallel, remedy)
    unused = "has no use for it; leave it out"
    if engine.python is not None:
        yield ("engine.python", engine.python, can.own_interpreter, unused)
    if engine.args:
        yield ("engine.args", list(engine.args), can.reserved_flags is not None, unused)
