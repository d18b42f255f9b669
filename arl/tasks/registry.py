"""Tasks that make their own problems, vocabulary and demonstrations. A new task is one module and one line here."""

import importlib
import random
from typing import Protocol, cast

from arl.errors import RecipeError
from arl.types import Problem


class Task(Protocol):
    CHARACTERS: str

    def problem(self, rng: random.Random, uniform_lengths: bool = False) -> Problem: ...

    def demonstration(self, problem: Problem, rng: random.Random, blurt: float = 0.0, slip: float = 0.0) -> str: ...

    def reward(self, problem: Problem, response: str, truncated: bool) -> float: ...


TASKS = {"running_checksum": "arl.tasks.running_checksum", "long_tail": "arl.tasks.long_tail"}  # name -> module


def task_module(name: str) -> str:
    """Raises RecipeError for a name nobody registered."""
    if name not in TASKS:
        raise RecipeError(f"data.task {name!r} is not a task; known: {', '.join(sorted(TASKS))}")
    return TASKS[name]


def task_named(name: str) -> Task:
    """The task's module; raises RecipeError for a name nobody registered."""
    return cast(Task, importlib.import_module(task_module(name)))
