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
    validate_environment,
)

Gigabytes = Annotated[PositiveFloat, Unit("GB")]


class Overlong(Section):
    """Lower the reward of responses that nearly fill their budget: DAPO, arXiv 2503.14476, equation 13."""

    buffer: Tokens
    """The last tokens of rollout.max_new_tokens, over which the penalty grows from 0 linearly; less than all of it."""
    penalty: NonNegativeFloat = 1.0
    """What a response that fills its budget loses."""


class Reward(Section):
    """Say how episodes are scored, in worker processes, and how the rewards of training episodes are shaped.

    A training episode's reward is clip((raw + bias) · scale, clip[0], clip[1]) − overlong penalty; docs/rewards.md.
    """

    function: str | None = None
    """`module:attribute` of a function (problem, response) -> float, or named parts; none: the task's own."""
    weights: dict[str, float] | None = None
    """Weights of the named parts, whose weighted sum is the raw reward; a part without one counts 1. null: the task's,
    with its own function."""
    scale: PositiveFloat = 1.0
    """Factor of the raw reward."""
    bias: Real = 0.0
    """Added to the raw reward, before the scale."""
    clip: tuple[float, float] | None = None
    """[low, high] bounds of the scaled reward."""
    overlong: Overlong | None = None
    """DAPO's soft penalty for long responses; null: none."""
    mask_truncated: bool = False
    """Leave the tokens of truncated episodes out of the loss. Their rewards still count in their groups."""
    on_error: Literal["zero", "drop", "stop"] = "zero"
    """What becomes of an episode that two calls did not grade. zero: its raw reward is 0; drop: its group is lost, and
    its problem is tried again; stop: the run ends."""
    workers: Positive = 1
    """Worker processes."""
    memory_gb: Gigabytes = 4.0
    """Address space that a call may add to what the import of its function took; beyond that it gets a MemoryError."""
    environment: Environment = Field(default_factory=dict)
    """Environment variables of the worker processes, added to those of `arl train`. OMP_NUM_THREADS, MKL_NUM_THREADS
    and OPENBLAS_NUM_THREADS are 1 unless given here."""

    @field_validator("clip")
    @classmethod
    def _ordered(cls, clip: tuple[float, float] | None) -> tuple[float, float] | None:
        if clip is not None and clip[0] >= clip[1]:
            raise ValueError(f"reward.clip {list(clip)}: give [low, high] with low < high")
        return clip

    @field_validator("environment")
    @classmethod
    def _not_reserved(cls, environment: Environment) -> Environment:
        return validate_environment("reward.environment", environment, may_give=("OMP_NUM_THREADS",))
