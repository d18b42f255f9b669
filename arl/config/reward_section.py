"""Define the recipe's section `reward`: how episodes are scored."""

from pydantic import Field, field_validator

from arl.config.environment import Environment, refuse_reserved
from arl.config.section import Positive, Section


class Reward(Section):
    """Say how episodes are scored, in worker processes."""

    function: str | None = None
    """`module:attribute` of a function (problem, response) -> float, or named parts; none: the task's own."""
    workers: Positive = 1
    """Worker processes."""
    environment: Environment = Field(default_factory=dict)
    """Environment variables of the worker processes, added to those of `arl train`."""

    @field_validator("environment")
    @classmethod
    def _not_reserved(cls, environment: Environment) -> Environment:
        return refuse_reserved("reward.environment", environment)
