"""A user's task: repeat a letter a few times. `data: {task: tests.extending.my_task:Echo}`."""

import random
from collections.abc import Sequence

from arl.config.section import Positive, Section, Steps
from arl.tasks.base import Demonstration, Split, Task, WarmupStage, is_held_out
from arl.types import Problem, Response

LETTERS = "abcdefgh"


class EchoOptions(Section):
    longest: Positive = 6
    """Longest answer, letters."""
    steps: Steps = 4
    """Of the warm-up."""


class Echo(Task):
    """The prompt is a letter and a number; the answer is the letter so many times."""

    Options = EchoOptions
    characters = LETTERS + "0123456789="
    evaluation = {"temperature": 0.5, "problems": 8}  # noqa: RUF012 - read once, never changed

    def __init__(self, options: EchoOptions) -> None:
        self.options = options

    def problems(self, split: Split, seed: int) -> list[Problem]:
        numbers = range(1, self.options.longest + 1)
        every = [Problem(f"{letter}{n}=", answer=letter * n) for letter in LETTERS for n in numbers]
        return [problem for problem in every if is_held_out(problem, 0.25) == (split == "evaluation")]

    @staticmethod
    def reward(problem: Problem, response: Response) -> float:
        letter = str(problem.prompt)[0]
        return response.text.count(letter) / max(len(response.text), 1)

    def warmup(self) -> Sequence[WarmupStage]:
        stage = WarmupStage(
            name="copying",
            demonstrate=self._demonstrate,
            ask=self._ask,
            steps=self.options.steps,
            learning_rate=1e-2,
        )
        return [stage]

    def _demonstrate(self, rng: random.Random, count: int) -> list[Demonstration]:
        return [Demonstration(problem, problem.answer) for problem in self._ask(rng, count)]

    def _ask(self, rng: random.Random, count: int) -> list[Problem]:
        return rng.choices(self.problems("training", seed=0), k=count)


class NoProblems(Task):
    @staticmethod
    def reward(problem: Problem, response: Response) -> float:
        return 1.0
