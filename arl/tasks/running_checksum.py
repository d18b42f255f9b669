"""Pose the running checksum: digits on a fixed tape, answered by their running totals mod 6 and the last of these.

    prompt  044433152550............=      k digits 0–5 on 24 cells, P(k) ∝ 1/k, k = 2..24
    worked  042531022… #total$             one running total per digit
    blurted #total$                        the habit that RL must remove

Answers grow with reward, and their lengths are long-tailed. A model of 0.4M parameters can learn this reasoning task.

The warm-up (arl.tasks.base) first shows worked answers, of all lengths alike, until the skill is there. It
then installs bad habits for RL to remove: most answers are blurted, and working steps slip.
"""

import random
from collections.abc import Sequence
from functools import partial

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

CHARACTERS = "0123456789.=#"
MOD = 6
MIN_DIGITS = 2
MAX_DIGITS = 24
_LENGTHS = range(MIN_DIGITS, MAX_DIGITS + 1)
_ZIPF = [1 / k for k in _LENGTHS]


class ChecksumOptions(DrawnOptions, TwoStageOptions):
    """Set the size of the problem set."""


class RunningChecksum(Task):
    """Sum digits mod 6, with the working shown."""

    Options = ChecksumOptions
    characters = CHARACTERS

    def __init__(self, options: ChecksumOptions) -> None:
        self._options = options

    def problems(self, split: Split, seed: int) -> list[Problem]:
        return drawn_problems(draw_problem, self._options, split, seed)

    @staticmethod
    def reward(problem: Problem, response: Response) -> float:
        """Return 1 if the response ended by itself and holds one '#', followed by the answer and nothing else."""
        head, mark, answer = response.text.partition("#")
        is_right = mark == "#" and answer == problem.answer and "#" not in head
        return float(is_right and not response.truncated)

    def warmup(self) -> Sequence[WarmupStage]:
        return two_stage_warmup(self._options, self._demonstrate, self._ask)

    def _demonstrate(self, rng: random.Random, count: int, blurt: float, slip: float) -> list[Demonstration]:
        problems = [self._draw_for_training(rng, uniform_lengths=True) for _ in range(count)]
        return [Demonstration(problem, demonstrate(problem, rng, blurt, slip)) for problem in problems]

    def _ask(self, rng: random.Random, count: int) -> list[Problem]:
        return [self._draw_for_training(rng, uniform_lengths=False) for _ in range(count)]

    def _draw_for_training(self, rng: random.Random, uniform_lengths: bool) -> Problem:
        return draw_for_training(partial(draw_problem, uniform_lengths=uniform_lengths), self._options, rng)


def draw_problem(rng: random.Random, uniform_lengths: bool = False) -> Problem:
    """Draw one problem; its number of digits is uniform, or Zipf."""
    k = rng.choice(_LENGTHS) if uniform_lengths else rng.choices(_LENGTHS, _ZIPF)[0]
    digits = [rng.randrange(MOD) for _ in range(k)]
    tape = "".join(map(str, digits)).ljust(MAX_DIGITS, ".")
    answer = str(sum(digits) % MOD)
    return Problem(f"{tape}=", answer)


def demonstrate(problem: Problem, rng: random.Random, blurt: float = 0.0, slip: float = 0.0) -> str:
    """Write a response to learn from: worked, or blurted with chance `blurt`; each step errs with chance `slip`."""
    assert isinstance(problem.prompt, str)
    if rng.random() < blurt:
        return f"#{problem.answer}"
    total = 0
    working = ""
    for digit in problem.prompt.rstrip(".="):
        total = (total + int(digit)) % MOD
        if rng.random() < slip:
            total = rng.randrange(MOD)
        working += str(total)
    return f"{working}#{total}"
