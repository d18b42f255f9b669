"""Ask a chat model for sums and differences of two small numbers, which a model of 135M parameters often gets wrong.

    system     Answer like this.
    user       What is 31 + 46?
    assistant  31 + 46 = 77                one worked example, and as many more as `examples` says
    user       What is 7 - 12?
    assistant  7 - 12 = -5                 the last number is the answer

The examples make a model answer in a few tokens, so that no supervised learning has to come first. Their numbers are
larger than those of any problem. Every pair of numbers is on one side only: 3 + 8 and 8 + 3 are never apart.
"""

import random
import re
from typing import Annotated, NamedTuple

from pydantic import Field

from arl.config.section import OpenFraction, Section
from arl.tasks.base import Split, Task, is_held_out
from arl.types import Problem, Response

LARGEST = 30  # less than the numbers of the examples
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


EXAMPLES = (
    Sum(31, "+", 46),
    Sum(58, "-", 70),
    Sum(62, "+", 35),
    Sum(93, "-", 41),
)


class SumsOptions(Section):
    """Set the range of the numbers, and how they are asked for."""

    largest: Annotated[int, Field(ge=1, le=LARGEST)] = 25
    """Largest number; the least is 0. There are 2·(largest + 1)² problems."""
    examples: Annotated[int, Field(ge=0, le=len(EXAMPLES))] = 2
    """Worked examples that come before the question, as turns of the chat."""
    eval_fraction: OpenFraction = 0.25
    """Share of the pairs of numbers that is held out for evaluation."""


class ShortSums(Task):
    """Add and subtract two small numbers."""

    Options = SumsOptions

    def __init__(self, options: SumsOptions) -> None:
        self._options = options

    def problems(self, split: Split, seed: int) -> list[Problem]:
        numbers = range(self._options.largest + 1)
        wants_held_out = split == "evaluation"
        chosen = [
            Sum(first, sign, second)
            for first in numbers
            for sign in "+-"
            for second in numbers
            if self._is_held_out(first, sign, second) == wants_held_out
        ]
        random.Random(f"problems {seed}").shuffle(chosen)
        return [pose(each, self._options.examples) for each in chosen]

    @staticmethod
    def reward(problem: Problem, response: Response) -> float:
        """Return 1 if the response ended by itself and its last number is the answer."""
        numbers = _NUMBER.findall(response.text)
        is_right = bool(numbers) and numbers[-1] == problem.answer
        return float(is_right and not response.truncated)

    def _is_held_out(self, first: int, sign: str, second: int) -> bool:
        smaller, larger = sorted((first, second))
        pair = Sum(smaller, sign, larger)
        return is_held_out(Problem(pair.text), self._options.eval_fraction)


def pose(asked: Sum, examples: int) -> Problem:
    """Write the chat of one question, after so many worked examples."""
    messages = [_message("system", "Answer like this.")]
    for example in EXAMPLES[:examples]:
        messages.append(_message("user", f"What is {example.text}?"))
        messages.append(_message("assistant", f"{example.text} = {example.value}"))
    messages.append(_message("user", f"What is {asked.text}?"))
    return Problem(messages, answer=str(asked.value))


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
