"""Provide every data set of the library reasoning-gym as a task, with its own generator and scorer.

data: {reasoning_gym: chain_sum} ─► the attribute `chain_sum` of this module, made on demand ─► entries ─► problems
                                                      score_answer(answer, entry) ◄── <answer>…</answer> ◄── response

The options of a task are the fields of the data set's own configuration, and those of GymOptions.
"""

import dataclasses
import functools
import pickle
import typing
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, create_model, model_validator

from arl.config.section import OpenFraction, Section
from arl.tasks.base import Split, Task, is_held_out
from arl.types import Problem, Response

try:
    from reasoning_gym.factory import DATASETS
    from reasoning_gym.utils import SYSTEM_PROMPTS, extract_answer
except ImportError as error:
    raise ImportError("the package reasoning-gym is missing: pip install 'reasoning-gym>=0.1.25,<0.2'") from error

EVALUATES = {  # data sets whose scorers hand an answer to Python's eval, or to sympy's parse_expr, which calls it
    "binary_matrix",
    "countdown",
    "intermediate_integration",
    "n_queens",
    "polynomial_multiplication",
    "puzzle24",
    "simple_integration",
    "spiral_matrix",
    "string_insertion",
}


class GymOptions(Section):
    """Say how entries are divided, and where a response has its answer."""

    model_config = ConfigDict(validate_default=True)  # some of the library's defaults are tuples in place of lists
    dataset: ClassVar[str]

    eval_fraction: OpenFraction = 0.1
    """Share of the questions held out for evaluation, by a hash of their text."""
    answer_tag: str = "answer"
    """The last <answer>…</answer> of a response is scored. Empty: the whole response."""
    trust_answers: bool = False
    """Score by data sets that evaluate an answer as Python. They do it in a reward worker, outside the sandbox."""

    @model_validator(mode="after")
    def _validate(self) -> Self:
        try:
            self.make_config(seed=0)
        except AssertionError as error:
            raise ValueError(f"data.options of reasoning-gym's {self.dataset}: {error}") from error
        members = {self.dataset, *(each.name for each in getattr(self, "datasets", None) or ())}  # of `composite`
        evaluates = ", ".join(sorted(members & EVALUATES))
        if evaluates and not self.trust_answers:
            raise ValueError(
                f"data.options.trust_answers: required for {evaluates}, because its scorer evaluates an answer of the "
                "model as Python, as your user and outside the sandbox; give true only on a machine that holds nothing "
                "of value"
            )
        return self

    def make_config(self, seed: int) -> bytes:
        """Return the data set's own configuration, pickled. Its seed is `seed`, where the options give none."""
        kind = DATASETS[self.dataset][1]
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(kind)}
        if values["seed"] is None:
            values["seed"] = seed
        config = kind(**values)
        if hasattr(config, "validate"):
            config.validate()
        return pickle.dumps(config)


class ReasoningGym(Task):
    """Pose the entries of one data set."""

    prompting: ClassVar[Mapping[str, Any]] = {"system": SYSTEM_PROMPTS["default"], "deduplicate": True}

    def __init__(self, options: GymOptions) -> None:
        self._options = options

    def problems(self, split: Split, seed: int) -> list[Problem]:
        """Return the entries of one side. Where the options give no `seed`, the recipe's makes them."""
        config = self._options.make_config(seed)
        wants_held_out = split == "evaluation"
        problems = []
        for entry in _entries(self._options.dataset, config):
            if is_held_out(Problem(entry["question"]), self._options.eval_fraction) is wants_held_out:
                problems.append(self._problem(entry, config))
        return problems

    @staticmethod
    def reward(problem: Problem, response: Response) -> float:
        """Return the score that the data set gives the answer of a response."""
        known = problem.metadata
        answer = extract_answer(response.text, known["answer_tag"]) if known["answer_tag"] else response.text.strip()
        return float(_open(known["dataset"], known["config"]).score_answer(answer, pickle.loads(known["entry"])))

    @staticmethod
    def extract(response: Response) -> str:
        """Return the tagged answer of a response, or the whole of one without a tag."""
        return extract_answer(response.text) or response.text.strip()

    def _problem(self, entry: dict[str, Any], config: bytes) -> Problem:
        """Keep the entry as it is: some hold tuples and types of numpy, and some cannot be generated again alike."""
        answer = entry["answer"]
        metadata = {
            "dataset": self._options.dataset,
            "config": config,
            "answer_tag": self._options.answer_tag,
            "entry": pickle.dumps(entry),
        }
        return Problem(entry["question"], answer="" if answer is None else str(answer), metadata=metadata)


@functools.lru_cache(maxsize=16)
def _open(dataset: str, config: bytes) -> Any:
    return DATASETS[dataset][0](pickle.loads(config))


@functools.lru_cache(maxsize=1)  # one side is asked for after the other
def _entries(dataset: str, config: bytes) -> list[dict[str, Any]]:
    opened = _open(dataset, config)
    return [opened[index] for index in range(len(opened))]


@functools.cache
def __getattr__(name: str) -> type[Task]:
    """Make the task of the data set `name`."""
    if name not in DATASETS:
        raise AttributeError(name)
    config = DATASETS[name][1]
    types = typing.get_type_hints(config)
    usual = vars(config())
    fields: dict[str, Any] = {field: (_type_of(types[field], default), default) for field, default in usual.items()}
    options = create_model("Options", __base__=GymOptions, **fields)
    options.dataset = name
    return type(name, (ReasoningGym,), {"Options": options, "__doc__": f"Pose entries of reasoning-gym's {name}."})


def _type_of(declared: Any, default: Any) -> Any:
    """Return the type of a field; with Any, where the library's default is not of the type that it declares."""
    try:
        TypeAdapter(declared).validate_json(TypeAdapter(Any).dump_json(default))
    except ValidationError:
        return Annotated[declared | Any, Field(union_mode="left_to_right")]
    return declared


def __dir__() -> list[str]:
    """List the data sets, among which a misspelled name is looked for."""
    return sorted(DATASETS)
