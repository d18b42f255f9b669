"""State what an engine backend can do, and refuse a recipe that asks for more."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from arl.errors import RecipeError
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
    adapters: bool = False
    """It begins with the base of train.lora and loads adapters alone; else it is given merged weights."""
    tensor_parallel: bool = False
    """One replica can use several GPUs, or on CPUs several processes: engine.tensor_parallel."""
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
        RecipeError: names the field, its value, the backend, and the remedy.
    """
    for field, value, remedy in _impossible(recipe, can):
        raise RecipeError(f"{field} {value}: {who} {remedy}")
    reserved = can.reserved_flags or {}
    flags = [argument.partition("=")[0] for argument in recipe.engine.args if argument.startswith("--")]
    for flag in flags:
        for name, source in reserved.items():
            if name.startswith(flag):  # servers take the beginning of a flag for the flag, such as --tp
                raise RecipeError(f"engine.args {flag}: arl gives it ({source}); leave it out")
    for name in recipe.engine.environment:
        if name in can.reserved_variables:
            raise RecipeError(f"engine.environment {name}: arl sets it ({can.reserved_variables[name]}); leave it out")


def _impossible(recipe: "Recipe", can: Capabilities) -> Iterator[tuple[str, object, str]]:
    """Yield what a recipe asks of its backend in vain: field, value and a remedy."""
    engine = recipe.engine
    if recipe.world_traits.one_process and not (can.in_process and can.deterministic_seeds):
        yield "engine.kind", engine.kind, "cannot generate in this process, as this world does; use embedded"
    if engine.kv_policy == "keep" and not can.keeps_cache:
        yield "engine.kv_policy", "keep", "cannot keep its cache at a swap; use recompute"
    if recipe.sync.check and not can.checksums:
        yield "sync.check", "true", "does not report checksums of its weights; leave it out"
    if recipe.mode == "collocated" and not can.releases_memory:
        yield "mode", "collocated", "cannot give up its memory while the trainer works; use disaggregated"
    if engine.tensor_parallel > 1 and not can.tensor_parallel:
        remedy = "runs a replica in one process; leave it out, and use more replicas"
        yield "engine.tensor_parallel", engine.tensor_parallel, remedy
    if engine.python is not None and not can.own_interpreter:
        yield "engine.python", engine.python, "has no use for it; leave it out"
    if engine.args and can.reserved_flags is None:
        yield "engine.args", list(engine.args), "has no use for it; leave it out"
