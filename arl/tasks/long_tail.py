"""Long-tailed answers of a known length: a workload for measuring asynchrony, with a reward that can be learned.

The problem states a digit and carries the length of its answer, drawn lognormal (median 32, p99 about 9 times that);
the env lets the policy speak for exactly so many tokens. The reward is the share of the answer that is that digit.
"""

import random
from typing import Any

from arl.types import Problem

CHARACTERS = "0123456789.=#"
MEDIAN, SIGMA, LONGEST = 32, 0.95, 448
PROMPT_LENGTH = 16


def problem(rng: random.Random, uniform_lengths: bool = False) -> Problem:
    length = min(round(rng.lognormvariate(0.0, SIGMA) * MEDIAN) + 1, LONGEST)
    digits = "".join(str(rng.randrange(10)) for _ in range(PROMPT_LENGTH - 1))
    return Problem(f"{digits}=", answer=digits[-1], metadata={"length": MEDIAN if uniform_lengths else length})


def demonstration(problem: Problem, rng: random.Random, blurt: float = 0.0, slip: float = 0.0) -> str:
    return problem.answer * MEDIAN


def reward(problem: Problem, response: str, truncated: bool) -> float:
    return response.count(problem.answer) / max(len(response), 1)


async def env(problem: Problem, session: Any) -> None:
    """One turn of exactly the stated length."""
    await session.generate(limit=problem.metadata["length"], stop=False)
