"""Tasks that make their own problems, vocabulary and demonstrations. A new task is one module and one line here."""

import random
from typing import Protocol

from arl.data import checksum
from arl.errors import RecipeError
from arl.types import Problem


class Task(Protocol):
    CHARACTERS: str

    def problem(self, rng: random.Random, uniform_lengths: bool = False) -> Problem: ...

    def demonstration(self, problem: Problem, rng: random.Random, blurt: float = 0.0, slip: float = 0.0) -> str: ...

    def reward(self, problem: Problem, response: str, truncated: bool) -> float: ...


TASKS: dict[str, Task] = {"running_checksum": checksum}


def task_named(name: str) -> Task:
    """Raises RecipeError for a name nobody registered."""
    if name not in TASKS:
        raise RecipeError(f"data.task {name!r} is not a task; known: {', '.join(sorted(TASKS))}")
    return TASKS[name]
