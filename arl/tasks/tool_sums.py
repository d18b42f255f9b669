"""Ask for sums that a tiny model cannot do in its head. It learns to call Python reliably, and to read the result.

    user       4821+9057
    assistant  <tool_call>{"name": "python", "arguments": {"code": "4821+9057"}}</tool_call>
    tool       13878
    assistant  #13878

The warm-up teaches both turns, and then a bad habit for RL to remove: most answers are blurted, `#` and a guess. Use it
with `rollout.tools: [python]`.
"""

import random
from collections.abc import Sequence
from typing import ClassVar

from arl.tasks.base import (
    Demonstration,
    DrawnOptions,
    Split,
    Task,
    TwoStageOptions,
    WarmupStage,
    draw_for_training,
    drawn_problems,
    two_stage_warmup,
)
from arl.types import Problem, Response

LARGEST = 9_999
CALL_BEGIN = '{"name": "python", "arguments": {"code": "'  # as one token, so that calls are short
CALL_END = '"}}'


class ToolSumsOptions(DrawnOptions, TwoStageOptions):
    """Set the size of the problem set, and the warm-up. A blurt answers without the tool; nothing slips."""

    skill_steps: ClassVar[int] = 1000
    skill_accuracy: ClassVar[float] = 0.97  # of answers behind a call
    habit_steps: ClassVar[int] = 60
    habit_learning_rate: ClassVar[float] = 5e-4
    blurt: ClassVar[float] = 0.85


class ToolSums(Task):
    """Add two numbers of up to four digits with a tool."""

    Options = ToolSumsOptions
    characters = "0123456789+-#"
    marks = ("<|user|>", "<|assistant|>", "<|tool|>", "<tool_call>", "</tool_call>", CALL_BEGIN, CALL_END)
    chat_template = (
        "{%- for message in messages -%}<|{{ message.role }}|>{{ message.content }}"
        "{%- for call in message.tool_calls or [] -%}<tool_call>{{ call.function | tojson }}</tool_call>{%- endfor -%}"
        "<eos>{%- endfor -%}"
        "{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
    )

    def __init__(self, options: ToolSumsOptions) -> None:
        self._options = options

    def problems(self, split: Split, seed: int) -> list[Problem]:
        return drawn_problems(draw_problem, self._options, split, seed)

    @staticmethod
    def reward(problem: Problem, response: Response) -> float:
        """Return 1 if the response ended by itself with '#' and the sum."""
        _, mark, answer = response.text.rpartition("#")
        return float(mark == "#" and answer == problem.answer and not response.truncated)

    def warmup(self) -> Sequence[WarmupStage]:
        return two_stage_warmup(self._options, self._demonstrate, self._ask)

    def _demonstrate(self, rng: random.Random, count: int, blurt: float, slip: float) -> list[Demonstration]:
        """Show first turns, and as many second ones behind a call."""
        shown = []
        for problem in self._draw_for_training(rng, count // 2):
            answer = f"#{problem.answer}"
            is_blurted = rng.random() < blurt
            shown.append(Demonstration(problem, answer if is_blurted else call_of(problem)))
            shown.append(Demonstration(with_call(problem), answer))
        return shown

    def _ask(self, rng: random.Random, count: int) -> list[Problem]:
        """Ask for the answer behind a call: an evaluation of the warm-up is of one turn."""
        return [with_call(problem) for problem in self._draw_for_training(rng, count)]

    def _draw_for_training(self, rng: random.Random, count: int) -> list[Problem]:
        return [draw_for_training(draw_problem, self._options, rng) for _ in range(count)]


def draw_problem(rng: random.Random) -> Problem:
    """Draw two numbers."""
    first = rng.randint(0, LARGEST)
    second = rng.randint(0, LARGEST)
    return Problem(f"{first}+{second}", str(first + second))


def call_of(problem: Problem) -> str:
    """Write the call that gives the sum."""
    return f"<tool_call>{CALL_BEGIN}{problem.prompt}{CALL_END}</tool_call>"


def with_call(problem: Problem) -> Problem:
    """Return the same problem behind a call and its result."""
    said = {"user": str(problem.prompt), "assistant": call_of(problem), "tool": problem.answer}
    return Problem([{"role": role, "content": content} for role, content in said.items()], problem.answer)
