"""The recipe's sections about problems: where they come from, how answers are scored, what is held out."""

from typing import Annotated

from pydantic import Field, field_validator, model_validator

from arl.config.environment import Environment, refuse_reserved
from arl.config.section import Fraction, NonNegative, Positive, PositiveFloat, Section


class Data(Section):
    """Problems, split into training and evaluation by a hash of their content."""

    task: str | None = None
    """Name of a task that makes its own problems (running_checksum, long_tail)."""
    path: str | None = None
    """Or a jsonl file; one object a line with `prompt` (text or chat messages) and `answer`."""
    size: Positive = 20_000
    """Problems a task makes."""
    eval_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share held out for evaluation."""

    @model_validator(mode="after")
    def _one_source(self) -> "Data":
        if (self.task is None) == (self.path is None):
            raise ValueError("data: give exactly one of data.task and data.path")
        return self


class Warmup(Section):
    """Supervised warm-up before RL: stage (a) until the skill is there, stage (b) bad habits for RL to remove."""

    target_accuracy: Fraction = 0.95
    """Stage (a) ends when sampled accuracy on fresh problems reaches this."""
    max_steps: Positive = 800
    """Stage (a) fails if the target is not reached in so many optimizer steps."""
    batch_size: Positive = 64
    """Sequences per optimizer step."""
    learning_rate: PositiveFloat = 2e-3
    """Peak; 50 steps of ramp, then linear to 10 % at max_steps."""
    eval_every: Positive = 20
    """Optimizer steps between sampled evaluations."""
    eval_samples: Positive = 256
    """Problems per sampled evaluation."""
    noise_steps: NonNegative = 50
    """Stage (b): optimizer steps on noisy demonstrations."""
    noise_learning_rate: PositiveFloat = 1e-3
    """Constant in stage (b)."""
    blurt: Fraction = 0.7
    """Stage (b): share of demonstrations that answer without working."""
    slip: Fraction = 0.1
    """Stage (b): chance of an error at each working step."""


class Reward(Section):
    """How episodes are scored, in worker processes."""

    function: str | None = None
    """`module:function` (problem, response, truncated) -> float; none: the task's own."""
    workers: Positive = 1
    """Worker processes."""
    environment: Environment = Field(default_factory=dict)
    """Environment variables of the worker processes, added to those of `arl train`."""

    @field_validator("environment")
    @classmethod
    def _not_reserved(cls, environment: Environment) -> Environment:
        return refuse_reserved("reward.environment", environment)


class Eval(Section):
    """Sampled accuracy on held-out problems, before and after training."""

    problems: NonNegative = 512
    """0: no evaluation."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature."""
