"""Define the recipe's section `reward`: how episodes are scored."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from arl.config.section import (
    Environment,
    NonNegativeFloat,
    Positive,
    PositiveFloat,
    Real,
    Section,
    Tokens,
    Unit,
    not_reserved,
)

Gigabytes = Annotated[PositiveFloat, Unit("GB")]


class Overlong(Section):
    """Lower the reward of responses that nearly fill their budget, as DAPO does (arXiv 2503.14476, eq. 13)."""

    buffer: Tokens
    """Last tokens of rollout.max_new_tokens, over which the penalty grows linearly from 0; less than all of it."""
    penalty: NonNegativeFloat = 1.0
    """What a response that fills its budget loses."""


class Reward(Section):
    """Say how episodes are scored. A training reward is clip((raw + bias) · scale, clip[0], clip[1]) − overlong
    penalty; see docs/rewards.md."""

    function: str | None = None
    """`module:attribute` of a function (problem, response) -> float or named parts. null: the task's."""
    weights: dict[str, float] | None = None
    """Weight of each named part in the raw reward; 1 if left out. null: the task's weights, with its own function."""
    scale: PositiveFloat = 1.0
    """Factor of the raw reward."""
    bias: Real = 0.0
    """Added to the raw reward before the scale."""
    clip: tuple[float, float] | None = None
    """[low, high] bounds of the scaled reward."""
    overlong: Overlong | None = None
    """null: no penalty."""
    mask_truncated: bool = False
    """Leave the tokens of truncated episodes out of the loss. Their rewards still count in their groups."""
    on_error: Literal["zero", "drop", "stop"] = "zero"
    """After two failed calls for an episode: its raw reward is 0; or its group is dropped and the problem retried; or
    the run stops."""
    workers: Positive = 1
    """Worker processes."""
    memory_gb: Gigabytes = 4.0
    """Address space that a call may add to that of the imported function; beyond it comes a MemoryError."""
    environment: Annotated[Environment, not_reserved("reward.environment", may_give=["OMP_NUM_THREADS"])] = Field(
        default_factory=dict
    )
    """More environment variables of the workers. OMP_NUM_THREADS, MKL_NUM_THREADS and OPENBLAS_NUM_THREADS are 1 unless
    given."""

    @field_validator("clip")
    @classmethod
    def _ordered(cls, clip: tuple[float, float] | None) -> tuple[float, float] | None:
        if clip is not None and clip[0] >= clip[1]:
            raise ValueError(f"reward.clip {list(clip)}: give [low, high] with low < high")
        return clip
