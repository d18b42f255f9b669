"""Define the recipe's section about the generating side."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from arl.config.capabilities import Capabilities, KvPolicy
from arl.config.imports import import_attribute
from arl.config.section import Environment, FilePath, NonNegative, Positive, Section, Tokens, not_reserved

Argument = Annotated[str, Field(coerce_numbers_to_str=True)]


class EngineConfig(Section):
    """Configure the generating side."""

    kind: str = "embedded"
    """embedded: arl's own engine. sglang: SGLang, in its own environment. `module:attribute`: your backend
    (arl.engine.backend)."""
    replicas: Positive = 1
    """Engine servers."""
    slots: Positive = 256
    """Requests decoded together by one replica."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Weights and cache; auto: bfloat16 on GPUs, float32 on CPUs. Use float16 with `train.dtype: float16`."""
    kv_policy: KvPolicy = "recompute"
    """At a swap, rebuild the cache of open requests under the new weights, or keep it."""
    threads: Positive | None = None
    """CPU threads of one replica. null: a fair share of the cores."""
    stream_interval: Tokens = 16
    """Tokens between two increments of one request."""
    max_restarts: NonNegative = 3
    """Restarts of a replica within an hour, after it died or missed a deadline, before it is given up."""
    min_replicas: Positive | None = None
    """The run goes on while so many replicas serve or start. null: `replicas`; the first one given up ends the run,
    unless engines were added (docs/elastic.md)."""
    tensor_parallel: Positive = 1
    """GPUs of one replica, or on CPUs the worker processes that share its threads; only sglang can use several."""
    environment: Annotated[Environment, not_reserved("engine.environment")] = Field(default_factory=dict)
    """More environment variables of the engine servers."""
    python: FilePath | None = None
    """sglang: its Python interpreter. null: ARL_SGLANG_PYTHON, or bin/python of the environment that .ci/sglang builds
    (ARL_SGLANG_ENV or ~/.cache/arl/sglang)."""
    args: tuple[Argument, ...] = ()
    """sglang: more flags of sglang.launch_server, as in [--mem-fraction-static, 0.8]. They override arl's choices of
    memory and largest decode graph."""

    @model_validator(mode="after")
    def _validate(self) -> "EngineConfig":
        if self.fewest_replicas > self.replicas:
            raise ValueError(
                f"engine.min_replicas {self.min_replicas}: must not be more than engine.replicas {self.replicas}"
            )
        return self

    @property
    def fewest_replicas(self) -> int:
        """Return with how many replicas the run still goes on."""
        return self.replicas if self.min_replicas is None else self.min_replicas

    @property
    def capabilities(self) -> Capabilities:
        """Return what this kind of backend can do at its best; what is installed may do less: see arl.engine.backend.

        Raises:
            RecipeError: no such backend, or one that lacks a part.
        """
        # By name, because config lies below the engines; and only for a recipe that is read, because it costs imports.
        find_backend = import_attribute("arl.engine.backend:find_backend", "engine.kind")
        found: Capabilities = find_backend(self.kind).capabilities
        return found
