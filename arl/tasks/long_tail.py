"""Give answers long-tailed, known lengths: a workload for measuring asynchrony, with a reward that can be learned.

The problem states a digit and carries the length of its answer, drawn lognormal (median 32, p99 about 9 times that).
The env lets the policy speak for exactly so many tokens. The reward is the share of the answer that is that digit.
"""

import random
from typing import Any

from arl.tasks.base import DrawnOptions, Split, Task, drawn_problems
from arl.types import Problem, Response

MEDIAN = 32  # tokens of an answer
SIGMA = 0.95  # of the lognormal
MAX_TOKENS = 448  # tokens of an answer
PROMPT_LENGTH = 16  # characters


class LongTail(Task):
    """Repeat a digit for as many tokens as the problem says."""

    Options = DrawnOptions
    characters = "0123456789.=#"

    def __init__(self, options: DrawnOptions) -> None:
        self._options = options

    def problems(self, split: Split, seed: int) -> list[Problem]:
        return drawn_problems(draw_problem, self._options, split, seed)

    @staticmethod
    def reward(problem: Problem, response: Response) -> float:
        """Return the share of the response that is the problem's digit."""
        return response.text.count(problem.answer) / max(len(response.text), 1)

    @staticmethod
    async def env(problem: Problem, session: Any) -> None:
        """Take one turn of exactly the stated length."""
        await session.generate(limit=problem.metadata["length"], stop=False)


def draw_problem(rng: random.Random) -> Problem:
    """Draw a digit to repeat, and the number of tokens to repeat it for."""
    drawn = rng.lognormvariate(0.0, SIGMA) * MEDIAN
    length = min(round(drawn) + 1, MAX_TOKENS)
    digits = "".join(str(rng.randrange(10)) for _ in range(PROMPT_LENGTH - 1))
    return Problem(
        f"{digits}=",
        answer=digits[-1],
        metadata={"length": length},
    )
