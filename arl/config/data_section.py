"""Define the recipe's sections about problems: where they come from, and how a tiny model is taught to answer them."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationInfo, field_validator, model_validator

from arl.config.imports import import_attribute
from arl.config.section import OpenFraction, Positive, Section
from arl.errors import RecipeError

TASKS: Mapping[str, str] = {
    "running_checksum": "arl.tasks.running_checksum:RunningChecksum",
    "long_tail": "arl.tasks.long_tail:LongTail",
    "short_sums": "arl.tasks.short_sums:ShortSums",
}
"""Built-in tasks: short name -> module:attribute."""


class Data(Section):
    """Say which problems to use: those of a task, or those of a file."""

    task: str | None = None
    """A task that brings its own problems and reward: running_checksum, long_tail, or yours as `module:attribute`."""
    options: dict[str, Any] = Field(default={}, validate_default=True)
    """The task's own settings; each task declares them in its Options."""
    path: str | None = None
    """Or a jsonl file; one object a line with `prompt` (text or chat messages) and `answer`."""
    eval_fraction: OpenFraction = 0.1
    """path: share of the problems that is held out for evaluation, chosen by a hash of each problem's content."""

    @field_validator("options")
    @classmethod
    def _complete_options(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """Fill in the task's defaults, so that a run's recipe.yaml holds every setting of it."""
        task = info.data.get("task")
        if task is None:
            if options:
                raise ValueError(f"data.options {options}: these are settings of a task; name one in data.task")
            return {}
        return task_options(task).model_validate(options).model_dump(mode="json")

    @model_validator(mode="after")
    def _one_source(self) -> "Data":
        if (self.task is None) == (self.path is None):
            raise ValueError("data: give exactly one of data.task and data.path")
        default = type(self).model_fields["eval_fraction"].default
        if self.task is not None and self.eval_fraction != default:
            raise ValueError(
                f"data.eval_fraction {self.eval_fraction}: only with data.path, since a task divides its own problems; "
                "see data.options"
            )
        return self


def task_options(task: str) -> type[Section]:
    """Import the class that declares the settings of a task.

    Raises:
        ValueError: nothing has this name.
    """
    options: type[Section] = getattr(_imported(task), "Options", Section)
    return options


def task_evaluation(task: str) -> Mapping[str, Any]:
    """Import what a task declares for the section `eval`.

    Raises:
        ValueError: nothing has this name.
    """
    declared: Mapping[str, Any] = getattr(_imported(task), "evaluation", {})
    return declared


def _imported(task: str) -> Any:
    try:
        return import_attribute(task, "data.task", TASKS)
    except RecipeError as error:
        raise ValueError(str(error)) from error  # so that the recipe's file names its line


class Warmup(Section):
    """Teach a tiny model its task by supervised learning before RL, in the stages that the task declares."""

    batch_size: Positive = 64
    """Sequences per optimizer step."""
    eval_every: Positive = 20
    """Optimizer steps between sampled evaluations, in a stage that ends at an accuracy."""
    eval_samples: Positive = 256
    """Problems per sampled evaluation."""
