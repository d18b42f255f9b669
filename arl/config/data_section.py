"""Define the recipe's section about problems: where they come from, and how they become prompts."""

import contextlib
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from string import Formatter
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, ValidationInfo, field_validator, model_validator

from arl.config.imports import import_attribute
from arl.config.section import FilePath, Fraction, OpenFraction, Positive, PositiveFloat, Section, Tokens
from arl.errors import RecipeError

TASKS: Mapping[str, str] = {
    "running_checksum": "arl.tasks.running_checksum:RunningChecksum",
    "long_tail": "arl.tasks.long_tail:LongTail",
    "short_sums": "arl.tasks.short_sums:ShortSums",
    "tool_sums": "arl.tasks.tool_sums:ToolSums",
    "one_liners": "arl.tasks.one_liners:OneLiners",
    "arithmetic": "arl.tasks.arithmetic:Arithmetic",
    "gsm8k": "arl.tasks.math_sets:Gsm8k",
    "math": "arl.tasks.math_sets:Math",
    "math500": "arl.tasks.math_sets:Math500",
    "aime24": "arl.tasks.math_sets:Aime24",
    "aime25": "arl.tasks.math_sets:Aime25",
    "amc23": "arl.tasks.math_sets:Amc23",
    "humaneval": "arl.tasks.code_sets:HumanEval",
    "mbpp": "arl.tasks.code_sets:Mbpp",
    "livecodebench": "arl.tasks.code_sets:LiveCodeBench",
    "livecodebench_v5": "arl.tasks.code_sets:LiveCodeBenchV5",
    "deepcoder": "arl.tasks.code_sets:DeepCoder",
    "codecontests": "arl.tasks.code_sets:CodeContests",
    "codeforces": "arl.tasks.code_sets:Codeforces",
}
"""Built-in tasks: short name -> module:attribute. `arl tasks` lists them."""

LIBRARIES: Mapping[str, str] = {
    "reasoning_gym": "arl.tasks.reasoning_gym_task",
    "verifiers": "arl.tasks.verifiers_env",
}
"""Fields that name a task of another library -> the module that has a task for each of its names."""

OF_FILES = ("eval_path", "eval_fraction", "columns", "template", "malformed")
"""Fields that describe files, and have no meaning beside data.task."""

EVAL_FRACTION = 0.1


class Columns(Section):
    """Name the columns of `path`; `outer.inner` is one inside a struct."""

    prompt: str = "prompt"
    """The question: text, or a list of chat messages (role, content)."""
    answer: str | None = None
    """What the reward compares with. null: the column `answer`, or an empty text without one."""


class PassRate(Section):
    """Keep the training problems that a model solved at a measured rate."""

    file: FilePath
    """SUITE.jsonl of `arl eval`, or rows of problem_id and correct, one for each sample."""
    min: Fraction = 0.0
    """Smallest rate to keep."""
    max: Fraction = 1.0
    """Largest rate to keep."""


class Data(Section):
    """Say which problems to use, of a task or of files, and how they become prompts. A list of such sections mixes
    several sources."""

    task: str | None = None
    """A task with its own problems and reward: a name from `arl tasks`, or `module:attribute`."""
    reasoning_gym: str | None = None
    """In place of task: a data set of reasoning-gym, as in chain_sum; see docs/adapters.md."""
    verifiers: str | None = None
    """In place of task: an environment of verifiers that is installed, as in gsm8k-v1; see docs/adapters.md."""
    options: dict[str, Any] = Field(default={}, validate_default=True)
    """The task's own settings."""
    path: FilePath | None = None
    """Instead of a task: jsonl or parquet files, as a path, a glob, or hf://datasets/OWNER/REPO/FILE. REPO@REVISION
    pins a branch, tag or commit."""
    eval_path: FilePath | None = None
    """path: files with the evaluation problems, instead of a share of `path`."""
    eval_fraction: OpenFraction | None = None
    """path: share of the problems held out for evaluation, by a hash of their content. null: 0.1 without eval_path."""
    columns: Columns = Columns()
    """Other columns become metadata of the problem."""
    template: str | None = None
    """path: the prompt, text with {column} fields, in place of columns.prompt. Write {{ and }} for braces."""
    malformed: Literal["fail", "skip"] = "fail"
    """path: a row that is no problem stops the start, or is skipped and counted."""
    system: str = ""
    """System prompt. Needs a tokenizer with a chat template."""
    suffix: str = ""
    """Text after each question, as in "\\nPut the answer in \\\\boxed{}."; tasks bring their own."""
    chat_template: bool = True
    """Make a text prompt a user's message where the tokenizer has a chat template."""
    template_arguments: dict[str, JsonValue] = Field(default={})
    """Arguments of the chat template, as in {enable_thinking: false}."""
    template_time: datetime = datetime(2025, 1, 1)
    """The date and time that a chat template sees, so that prompts are the same on every day."""
    deduplicate: bool = False
    """Use training problems with an equal question once. Left out: true for files, and what the task says."""
    overlap: Literal["refuse", "drop"] = "refuse"
    """A training problem that is also in the evaluation or in eval.suites stops the start, or is left out and
    counted."""
    max_prompt_tokens: Tokens | None = None
    """Leave out and count training problems with longer prompts. null: a prompt that does not fit stops the start."""
    pass_rate: PassRate | None = None
    """null: all of them."""
    curriculum: Positive | None = None
    """Epochs in which a training problem is skipped whose last group was always or never solved. null: none."""
    weight: PositiveFloat | None = None
    """Of one source among several: its share of the problems, relative to the weights of the others. null: 1."""
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] | None = None
    """Of one source among several: its name in metrics and suites. null: that of its task, or of its file."""

    @property
    def source_name(self) -> str:
        """Return the name of this source among several."""
        whole = Path(self.path or "").stem if self.task is None else self.task.rpartition(":")[2]
        return self.name or re.sub(r"[^A-Za-z0-9._]+", "-", whole).strip("-.")

    @model_validator(mode="before")
    @classmethod
    def _default_by_source(cls, values: Any) -> Any:
        """Fill in what the task declares, or what files need, where the recipe is silent."""
        if not isinstance(values, dict):
            return values
        given = {name: value for name, value in values.items() if value is not None}
        given = with_task(given)
        if isinstance(given.get("task"), str):
            with contextlib.suppress(ValueError):  # the validator of the options says that there is no such task
                return getattr(_imported(given["task"]), "prompting", {}) | given
        elif "path" in given:
            of_evaluation = {} if "eval_path" in given else {"eval_fraction": EVAL_FRACTION}
            return {"deduplicate": True} | of_evaluation | given
        return given

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

    @field_validator("template")
    @classmethod
    def _readable(cls, template: str | None) -> str | None:
        if template is None:
            return None
        try:
            fields = template_fields(template)
        except ValueError as error:
            rule = f"{error}; write {{{{ and }}}} for braces that are text, as in \\boxed{{{{}}}}"
            raise ValueError(f"data.template {template!r}: {rule}") from error
        if not fields:
            raise ValueError(f"data.template {template!r}: names no column; write {{question}}, for instance")
        return template

    @model_validator(mode="after")
    def _one_source(self) -> "Data":
        if (self.task is None) == (self.path is None):
            raise ValueError("data: give exactly one of data.task and data.path")
        for name in OF_FILES:
            value = getattr(self, name)
            if self.task is not None and value != type(self).model_fields[name].default:
                raise ValueError(
                    f"data.{name} {value}: only with data.path, since a task divides and reads its own problems; "
                    "see data.options"
                )
        if self.eval_path is not None and self.eval_fraction is not None:
            raise ValueError(
                f"data.eval_fraction {self.eval_fraction}: data.eval_path {self.eval_path} holds the problems of the "
                "evaluation; give one of the two"
            )
        return self


def with_task(values: dict[str, Any]) -> dict[str, Any]:
    """Replace a field that names a task of another library by the task that stands for it.

    >>> with_task({"reasoning_gym": "chain_sum"})
    {'task': 'arl.tasks.reasoning_gym_task:chain_sum'}

    Raises:
        ValueError: a task is named as well.
    """
    for field in LIBRARIES.keys() & values.keys():
        others = {name: value for name, value in values.items() if name != field}
        if "task" in others:
            raise ValueError(f"data.{field} {values[field]}: data.task {others['task']} is named as well; give one")
        name = str(values[field]).rpartition("/")[2].partition("@")[0]  # of OWNER/NAME@VERSION
        return {**others, "task": f"{LIBRARIES[field]}:{name.replace('-', '_')}"}
    return values


def task_options(task: str) -> type[Section]:
    """Import the class that declares the settings of a task.

    Raises:
        RecipeError: nothing has this name.
    """
    options = getattr(_imported(task), "Options", Section)
    if not isinstance(options, type) or not issubclass(options, Section):
        raise RecipeError(f"data.task {task!r}: its Options must be a subclass of arl.config.section:Section")
    return options


def task_evaluation(task: str) -> dict[str, Any]:
    """Import what a task declares for the section `eval`.

    Raises:
        RecipeError: nothing has this name.
    """
    return dict(getattr(_imported(task), "evaluation", {}))


def _imported(task: str) -> Any:
    return import_attribute(task, "data.task", TASKS)


def template_fields(template: str) -> list[str]:
    """Return the names of the fields in their order.

    >>> template_fields("{question}\\nPut the answer in \\\\boxed{{}}.")
    ['question']

    Raises:
        ValueError: a brace without its partner, a field without a name, or one with a conversion or a format.
    """
    fields = []
    for _, name, layout, conversion in Formatter().parse(template):
        if name == "" or layout or conversion:
            raise ValueError("a field is the name of a column alone, like {question}")
        if name is not None:
            fields.append(name)
    return fields


def fill_template(template: str, values: dict[str, str]) -> str:
    """Put the values in place of the fields."""
    parts = Formatter().parse(template)
    return "".join(text + (values[name] if name is not None else "") for text, name, _, _ in parts)
