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
from typing import Annotated

from pydantic import Field

from arl.config.section import OpenFraction, Section
from arl.tasks.base import Split, Task, is_held_out
from arl.types import Problem, Response

EXAMPLES = ((31, "+", 46), (58, "-", 70), (62, "+", 35), (93, "-", 41))
LARGEST = 30  # less than the numbers of the examples
_NUMBER = re.compile(r"-?\d+")


class SumsOptions(Section):
    """Range of the numbers, and how they are asked for."""

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
        asked = [(a, sign, b) for a in numbers for sign in "+-" for b in numbers]
        wants_held_out = split == "evaluation"
        chosen = [question for question in asked if self._is_held_out(question) == wants_held_out]
        random.Random(f"problems {seed}").shuffle(chosen)
        return [pose(question, self._options.examples) for question in chosen]

    @staticmethod
    def reward(problem: Problem, response: Response) -> float:
        """Return 1 if the response ended by itself and its last number is the answer."""
        numbers = _NUMBER.findall(response.text)
        is_right = bool(numbers) and numbers[-1] == problem.answer
        return float(is_right and not response.truncated)

    def _is_held_out(self, question: tuple[int, str, int]) -> bool:
        a, sign, b = question
        pair = Problem(f"{min(a, b)} {sign} {max(a, b)}")
        return is_held_out(pair, self._options.eval_fraction)


def pose(question: tuple[int, str, int], examples: int) -> Problem:
    """Write the chat of one question, after so many worked examples."""
    messages = [{"role": "system", "content": "Answer like this."}]
    for example in EXAMPLES[:examples]:
        messages.append({"role": "user", "content": f"What is {_text(example)}?"})
        messages.append({"role": "assistant", "content": f"{_text(example)} = {_value(example)}"})
    messages.append({"role": "user", "content": f"What is {_text(question)}?"})
    return Problem(messages, answer=str(_value(question)))


def _text(question: tuple[int, str, int]) -> str:
    a, sign, b = question
    return f"{a} {sign} {b}"


def _value(question: tuple[int, str, int]) -> int:
    a, sign, b = question
    return a + b if sign == "+" else a - b
