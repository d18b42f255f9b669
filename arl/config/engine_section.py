"""The recipe's section about the generating side."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from arl.config.environment import Environment, refuse_reserved
from arl.config.section import NonNegative, Positive, Section

Argument = Annotated[str, Field(coerce_numbers_to_str=True)]
OURS = {  # SGLang's flags that arl gives, and where the value comes from
    "--model-path": "model.path",
    "--model": "model.path",
    "--tp-size": "engine.tensor_parallel",
    "--tensor-parallel-size": "engine.tensor_parallel",
    "--dtype": "engine.dtype",
    "--max-running-requests": "engine.slots",
    "--stream-interval": "engine.stream_interval",
    "--random-seed": "seed",
    "--weight-version": "the published version",
    "--host": "the launcher's address",
    "--port": "always a free one",
    "--api-key": "the key of the run",
}


class EngineConfig(Section):
    """The generating side."""

    kind: Literal["embedded", "sglang"] = "embedded"
    """arl's own engine, or SGLang, which lives in an environment of its own: see `python`."""
    replicas: Positive = 1
    """Engine servers."""
    slots: Positive = 256
    """Requests decoded together by one replica."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Weights and cache."""
    kv_policy: Literal["recompute", "keep"] = "recompute"
    """At a swap, rebuild the cache of open requests under the new weights, or keep it."""
    threads: Positive | None = None
    """CPU threads of one replica; none: a fair share of the cores."""
    stream_interval: Positive = 16
    """Tokens between two increments of one request."""
    max_restarts: NonNegative = 3
    """Times each replica may die or fall silent, and is started again; the next time ends the run."""
    tensor_parallel: Positive = 1
    """sglang: GPUs of one replica."""
    environment: Environment = Field(default_factory=dict)
    """Environment variables of the engine servers, added to those of `arl train`."""
    python: str | None = None
    """sglang: its interpreter; none: the environment variable ARL_SGLANG_PYTHON, or bin/python where .ci/sglang
    builds, which is ARL_SGLANG_ENV or ~/.cache/arl/sglang. `arl doctor` checks it."""
    args: tuple[Argument, ...] = ()
    """sglang: more flags for sglang.launch_server, as in [--mem-fraction-static, 0.8]; they win over arl's own choice
    for a machine without GPUs."""

    @field_validator("environment")
    @classmethod
    def _not_reserved(cls, environment: Environment) -> Environment:
        return refuse_reserved("engine.environment", environment)

    @field_validator("args")
    @classmethod
    def _not_ours(cls, args: tuple[str, ...]) -> tuple[str, ...]:
        for flag in (arg.partition("=")[0] for arg in args if len(arg) > len("--")):
            if ours := next((name for name in OURS if name.startswith(flag)), None):  # SGLang takes --tp for --tp-size
                raise ValueError(f"engine.args {flag}: arl gives it ({OURS[ours]}); leave it out")
        return args

    @model_validator(mode="after")
    def _for_sglang_alone(self) -> "EngineConfig":
        if self.kind == "embedded":
            for field, default in (("tensor_parallel", 1), ("python", None), ("args", ())):
                if (value := getattr(self, field)) != default:
                    raise ValueError(f"engine.{field} {value!r}: only with engine.kind sglang; leave it out")
        return self
