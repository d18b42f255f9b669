"""Ask a chat model for sums and differences of two small numbers, which a model of 135M parameters often gets wrong.

    system     Answer like this.
    user       What is 31 + 46?
    assistant  31 + 46 = 77                one worked example, and then another
    user       What is 7 - 12?
    assistant  7 - 12 = -5                 the last number is the answer

The examples make a model answer in a few tokens, so that no supervised learning has to come first. Their numbers are
larger than those of any problem. Every pair of numbers is on one side only: 3 + 8 and 8 + 3 are never apart.
"""

import random
import re
from typing import NamedTuple

from arl.config.section import Section
from arl.tasks.base import Split, Task, chat_of_examples, is_held_out
from arl.types import Problem, Response

LARGEST = 25  # less than the numbers of the examples; there are 2·(LARGEST + 1)² problems
EVAL_FRACTION = 0.25  # of the pairs of numbers, held out for evaluation
_NUMBER = re.compile(r"-?\d+")


class Sum(NamedTuple):
    """Add two numbers, or subtract the second."""

    first: int
    sign: str  # + or -
    second: int

    @property
    def text(self) -> str:
        """Return it as it is written."""
        return f"{self.first} {self.sign} {self.second}"

    @property
    def value(self) -> int:
        """Return its result."""
        if self.sign == "+":
            return self.first + self.second
        return self.first - self.second


EXAMPLES = (Sum(31, "+", 46), Sum(58, "-", 70))


class ShortSums(Task):
    """Add and subtract two small numbers."""

    def __init__(self, options: Section) -> None:
        """Take no options."""

    def problems(self, split: Split, seed: int) -> list[Problem]:
        numbers = range(LARGEST + 1)
        wants_held_out = split == "evaluation"
        sums = [Sum(first, sign, second) for first in numbers for sign in "+-" for second in numbers]
        chosen = [pose(each) for each in sums if self._is_held_out(each) == wants_held_out]
        random.Random(f"problems {seed}").shuffle(chosen)
        return chosen

    @staticmethod
    def reward(problem: Problem, response: Response) -> float:
        """Return 1 if the response ended by itself and its last number is the answer."""
        numbers = _NUMBER.findall(response.text)
        is_right = bool(numbers) and numbers[-1] == problem.answer
        return float(is_right and not response.truncated)

    def _is_held_out(self, asked: Sum) -> bool:
        smaller, larger = sorted((asked.first, asked.second))
        return is_held_out(Problem(Sum(smaller, asked.sign, larger).text), EVAL_FRACTION)


def pose(asked: Sum) -> Problem:
    """Write the chat of one question, after the worked examples."""
    examples = [(f"What is {each.text}?", f"{each.text} = {each.value}") for each in EXAMPLES]
    messages = chat_of_examples("Answer like this.", examples, f"What is {asked.text}?")
    return Problem(messages, answer=str(asked.value))
