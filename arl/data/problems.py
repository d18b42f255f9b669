"""Load problems, from a task or a jsonl file, and hand the training ones out, each epoch in its own shuffle.

task or jsonl ─► load_problems ─► held out | training ─► ProblemOrder ─► one problem after another, epoch after epoch
"""

import random
from pathlib import Path
from typing import Any

from arl.config.recipe import Data
from arl.data.jsonl import read_jsonl
from arl.errors import DataError
from arl.tasks.base import is_held_out
from arl.tasks.registry import open_task
from arl.types import Problem


def load_problems(data: Data, seed: int) -> tuple[list[Problem], list[Problem]]:
    """Load or make (training, held out), in the order of the file or of the task.

    Raises:
        DataError: no such file, a line that is no problem, or no problem to train on.
    """
    if data.task is not None:
        task = open_task(data)
        training = list(task.problems("training", seed))
        held_out = list(task.problems("evaluation", seed))
    else:
        assert data.path is not None
        rows = read_jsonl(Path(data.path), field="data.path")
        problems = [_problem(row, place) for place, row in rows]
        training = [problem for problem in problems if not is_held_out(problem, data.eval_fraction)]
        held_out = [problem for problem in problems if is_held_out(problem, data.eval_fraction)]
    if not training:
        raise DataError(
            f"{data.path or data.task}: {len(held_out)} problems leave none to train on; give more, or hold out fewer"
        )
    return training, held_out


def _problem(row: Any, place: str) -> Problem:
    """Make a problem of one line of a file; `place` names the line in messages."""
    prompt = row.get("prompt") if isinstance(row, dict) else None
    if not prompt or not (isinstance(prompt, str) or _is_chat(prompt)):
        raise DataError(f"{place}: needs a non-empty `prompt`, text or a list of chat messages (role, content)")
    answer = row.get("answer")
    return Problem(
        prompt,
        answer="" if answer is None else str(answer),
        metadata={key: value for key, value in row.items() if key not in ("prompt", "answer")},
    )


def _is_chat(prompt: Any) -> bool:
    return isinstance(prompt, list) and all(_is_message(part) for part in prompt)


def _is_message(part: Any) -> bool:
    if not isinstance(part, dict):
        return False
    return isinstance(part.get("role"), str) and isinstance(part.get("content"), str)


class ProblemOrder:
    """Hand out training problems without end, each epoch in its own deterministic shuffle.

    >>> order = ProblemOrder([Problem("a"), Problem("b")], seed=0)
    >>> sorted(next(order).prompt for _ in range(2))
    ['a', 'b']
    """

    def __init__(self, problems: list[Problem], seed: int) -> None:
        assert problems
        self._problems = problems
        self._seed = seed
        self._epoch = -1  # that `_shuffled` is of; none yet
        self._shuffled = problems
        self.position = 0  # problems handed out

    def __iter__(self) -> "ProblemOrder":
        return self

    def restore(self, position: int) -> None:
        """Go on from a checkpoint, after so many problems."""
        self.position = position

    def __next__(self) -> Problem:
        epoch, index = divmod(self.position, len(self._problems))
        if epoch != self._epoch:
            self._epoch = epoch
            self._shuffled = list(self._problems)
            random.Random(f"epoch {epoch} {self._seed}").shuffle(self._shuffled)
        self.position += 1
        return self._shuffled[index]
