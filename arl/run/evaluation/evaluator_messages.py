"""Define what the controller and the evaluator process send each other, in frames of arl.launch.frames.

controller ── EvaluatorAssignment, once ─► evaluator         what it needs to know; the run's key is in its environment
controller ── MeasureRequest ────────────► evaluator         for each version
controller ◄────────────── MeasureOutcome ─ evaluator
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from arl.config.recipe import Recipe
from arl.errors import GradingError, RewardError, RunError, leaves, short_message
from arl.launch.base import Resources
from arl.run.evaluation.suite import Suite
from arl.types import Accuracy, Problem, StartingVersions

LONGEST_ASSIGNMENT = 1 << 30  # bytes; it holds the problems of every suite
LONGEST_MESSAGE = 1 << 20
NOTE = "note: "  # begins a line of its output that the console of the run shows


class SuiteFields(Struct, frozen=True):
    """Hold a Suite as plain fields."""

    name: str
    recipe: dict[str, Any]
    problems: tuple[Problem, ...]

    @staticmethod
    def of(suite: Suite) -> "SuiteFields":
        """Return the fields of `suite`."""
        return SuiteFields(suite.name, recipe_fields(suite.recipe), suite.problems)

    def suite(self) -> Suite:
        """Return the suite."""
        return Suite(self.name, Recipe.model_validate(self.recipe), self.problems)


class EvaluatorAssignment(Struct, frozen=True, kw_only=True):
    """Say what is measured, and on which server."""

    recipe: dict[str, Any]  # with the deadlines of the evaluation
    suites: tuple[SuiteFields, ...]
    tokenizer: str  # directory of a model
    context: int  # of the model, tokens
    url: str  # of the server
    certificate: str | None  # of the run
    versions: StartingVersions  # the server began with
    resources: Resources  # of the server
    host: str
    logs: str  # directory


class MeasureRequest(Struct, frozen=True):
    """Ask for the accuracies of one version."""

    version: int
    model: str  # directory of its weights


class MeasureOutcome(Struct, frozen=True):
    """Hold the accuracies of a version, or why there are none."""

    accuracies: tuple[Accuracy, ...] = ()  # one of each suite
    error: str = ""
    is_of_engine: bool = False  # another engine may help: this one is lost, hangs or refuses

    @staticmethod
    def failed(error: Exception) -> "MeasureOutcome":
        """Describe an error of the engine, or of the episodes."""
        cause = next(leaves(error))
        return MeasureOutcome(
            error=short_message(f"{type(cause).__name__}: {cause}"), is_of_engine=_is_of_engine(error)
        )


def recipe_fields(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as plain fields, by which Recipe.model_validate makes an equal one."""
    return recipe.model_dump(mode="json")


def suite_fields(suites: Sequence[Suite]) -> tuple[SuiteFields, ...]:
    """Return all suites as plain fields."""
    return tuple(SuiteFields.of(suite) for suite in suites)


def _is_of_engine(error: BaseException) -> bool:
    of_rewards = (RewardError, GradingError)
    return any(isinstance(cause, RunError) and not isinstance(cause, of_rewards) for cause in leaves(error))
