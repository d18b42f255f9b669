"""Define the recipe's sections `reward` and `eval`: scores of episodes, and what is measured."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from arl.config.section import (
    RESERVED,
    Environment,
    NonNegative,
    NonNegativeFloat,
    Positive,
    PositiveFloat,
    Real,
    Section,
    Tokens,
    Unit,
    not_reserved,
)

HELD_OUT = "held_out"  # the suite of a recipe's own evaluation problems

TopP = Annotated[float, Field(gt=0, le=1)]
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
    environment: Annotated[Environment, not_reserved("reward.environment", may_give=RESERVED)] = Field(
        default_factory=dict
    )
    """More environment variables of the workers. OMP_NUM_THREADS, 1 unless given, holds for MKL and OpenBLAS too, and
    engines and ranks leave that many cores of the machine to each worker."""

    @property
    def cores(self) -> int:
        """Return the cores that the recipe gives to the workers. Those with the default, one thread, get none."""
        threads = self.environment.get("OMP_NUM_THREADS", "1").partition(",")[0]
        return self.workers * int(threads) if threads.isdecimal() and threads != "1" else 0

    @field_validator("clip")
    @classmethod
    def _ordered(cls, clip: tuple[float, float] | None) -> tuple[float, float] | None:
        if clip is not None and clip[0] >= clip[1]:
            raise ValueError(f"reward.clip {list(clip)}: give [low, high] with low < high")
        return clip


class Eval(Section):
    """Measure accuracy on held-out problems before, during (`every`) and after training."""

    suites: tuple[str, ...] = (HELD_OUT,)
    """Measured during training: tasks by name, or held_out for the recipe's own problems, which are measured before and
    after. The first one chooses checkpoints/best."""
    every: NonNegative = 0
    """Steps between evaluations during training, each on exactly that step's weights; 0: none. They take one more
    engine replica, at the lowest priority or on its own GPUs; in one process, no virtual time."""
    problems: NonNegative = 512
    """Most problems of a suite to use, the first ones; 0: no evaluation."""
    samples: Positive = 1
    """Episodes of each problem, whose mean is its score."""
    temperature: NonNegativeFloat = 1.0
    """Sampling temperature; 0: greedy, with samples 1."""
    top_p: TopP = 1.0
    """Sample from the most probable tokens with together at least this probability; 1: all."""
    top_k: Positive | None = None
    """Sample from this many most probable tokens. null: all."""
    max_new_tokens: Tokens | None = None
    """Token budget of one episode. null: rollout.max_new_tokens."""

    @property
    def decides(self) -> str:
        """Return the suite that chooses the best checkpoint."""
        return self.suites[0]

    @property
    def only_held_out(self) -> bool:
        """Return whether nothing is measured during training but what is also measured before and after it."""
        return self.suites == (HELD_OUT,)

    @model_validator(mode="after")
    def _validate(self) -> "Eval":
        if self.every and not (self.suites and self.problems):
            raise ValueError(
                f"eval.every {self.every}: eval.suites {list(self.suites)} with eval.problems {self.problems} leaves "
                "nothing to measure; name a suite and give problems, or leave out eval.every"
            )
        if self.temperature == 0 and self.samples > 1:
            raise ValueError(
                f"eval.samples {self.samples}: with temperature 0 every sample is the same; give samples 1, or a "
                "temperature above 0"
            )
        if self.temperature == 0 and (self.top_p < 1 or self.top_k is not None):
            raise ValueError("eval.temperature 0: greedy takes the most probable token; leave out top_p and top_k")
        return self
