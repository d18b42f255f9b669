"""Ask a chat model for Python expressions about a list x, and test what they return.

    system     Answer with a Python expression.
    user       sum of the items before item 23
    assistant  sum(x[:23])                      one worked example, and then three others
    user       max of the items from item 4 on

The examples make a model answer in a few tokens, so that no supervised learning has to come first. Their numbers are in
no problem. Each question is on one side only. An answer runs in the sandbox, on lists that the question does not show.
"""

import random
from typing import Any

import msgspec

from arl.config.section import Section
from arl.reward.code import score, vote
from arl.tasks.base import Split, Task, chat_of_examples, is_held_out
from arl.types import Problem, Response

EVAL_FRACTION = 0.25
NUMBERS = range(2, 20)
LENGTHS = (25, 27, 29, 31)  # of the lists of the tests; of two lengths, no two slices have the same maximum
SECONDS = 2.0  # of a test
FOLDS = ("sum", "max", "min", "sorted", "str")
SLICES = {  # text -> expression
    "the items before item {n}": "x[:{n}]",
    "the items from item {n} on": "x[{n}:]",
    "the last {n} items": "x[-{n}:]",
    "the items without the last {n}": "x[:-{n}]",
}
EXAMPLES = (
    ("sum of the items before item 23", "sum(x[:23])"),
    ("max of the items from item 21 on", "max(x[21:])"),
    ("sorted of the last 24 items", "sorted(x[-24:])"),
    ("min of the items without the last 22", "min(x[:-22])"),
)


class OneLiners(Task):
    """Write short Python expressions about a list."""

    extract = staticmethod(vote)

    def __init__(self, options: Section) -> None:
        """Take no options."""

    def problems(self, split: Split, seed: int) -> list[Problem]:
        wants_held_out = split == "evaluation"
        chosen = []
        for fold in FOLDS:
            for text, expression in SLICES.items():
                for n in NUMBERS:
                    problem = pose(f"{fold} of {text.format(n=n)}", f"{fold}({expression.format(n=n)})")
                    if is_held_out(problem, EVAL_FRACTION) is wants_held_out:
                        chosen.append(problem)
        random.Random(f"problems {seed}").shuffle(chosen)
        return chosen

    @staticmethod
    def reward(problem: Problem, response: Response) -> dict[str, float]:
        """Run the answer as the body of a function."""
        program = f"```python\ndef f(x): return {response.text.strip()}\n```"
        return score(problem, msgspec.structs.replace(response, text=program))


vars(OneLiners.reward).update(vars(score))  # weights of the parts, time of a call, use of the sandbox


def pose(question: str, solution: str) -> Problem:
    """Write the chat of a question, with what the solution returns."""
    messages = chat_of_examples("Answer with a Python expression.", EXAMPLES, question)
    rng = random.Random(question)
    lists = [sorted(rng.sample(range(-99, 100), length), reverse=bool(i % 2)) for i, length in enumerate(LENGTHS)]
    cases = [{"input": [each], "output": eval(solution, {"x": each})} for each in lists]
    tests: dict[str, Any] = {"kind": "calls", "entry": "f", "cases": cases, "seconds": SECONDS}
    return Problem(messages, answer=solution, metadata={"tests": tests})
