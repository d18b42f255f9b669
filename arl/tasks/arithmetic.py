"""Pose short sums and word problems: every path of math RL runs without any data set.

    the same in every run ─► training and evaluation problems, 48 of each
    demonstrations        ─► other problems of the same kinds, worked ─► warm-up of a tiny model

    prompt  Eva has 27 pens and gets 45. How many now?
    worked  7+5=12; 2+4+1=7; \\boxed{72}
    blurted \\boxed{72}                          the habit that RL must remove

The warm-up (arl.tasks.base) first teaches to work a problem digit by digit, and then installs bad habits,
for RL to remove.
"""

import functools
import random
import string
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple

from arl.reward.math.grader import score, vote
from arl.tasks.base import Demonstration, Split, Task, TwoStageOptions, WarmupStage, two_stage_warmup
from arl.types import Problem

PROBLEMS_PER_KIND = 16  # both sides together
NAMES = ("Ann", "Ben", "Eva", "Kim", "Leo", "Mia", "Sam", "Tom")
THINGS = ("cups", "eggs", "figs", "hats", "keys", "nuts", "pens", "toys")


class Exercise(NamedTuple):
    """Hold a problem with its working."""

    question: str
    working: tuple[str, ...]  # steps, each with its result after the last `=`
    answer: str


def add(rng: random.Random, in_words: bool = False) -> Exercise:
    """Ask for a sum of two numbers of two digits, or how many things somebody has after getting more."""
    first, second = _two_summands(rng)
    question = f"{first} + {second} = ?"
    if in_words:
        question = f"{rng.choice(NAMES)} has {first} {rng.choice(THINGS)} and gets {second}. How many now?"
    return Exercise(question, _added(first, second), str(first + second))


def subtract(rng: random.Random, in_words: bool = False) -> Exercise:
    """Ask for a difference of two numbers of two digits, or how many things are left after giving some away."""
    first, second = _two_summands(rng)
    total = first + second
    question = f"{total} - {first} = ?"
    if in_words:
        question = f"{rng.choice(NAMES)} has {total} {rng.choice(THINGS)} and gives {first} away. How many now?"
    return Exercise(question, _subtracted(total, first), str(second))


def add_fractions(rng: random.Random) -> Exercise:
    """Ask for a sum of two fractions with one prime denominator, below 1."""
    denominator = rng.choice((5, 7, 11, 13))
    first = rng.randint(1, denominator - 2)
    second = rng.randint(1, denominator - 1 - first)
    top = first + second
    question = f"{first}/{denominator} + {second}/{denominator} = ?"
    return Exercise(question, (f"{first}+{second}={top}",), f"\\frac{{{top}}}{{{denominator}}}")


def add_units(rng: random.Random) -> Exercise:
    """Ask for a length in centimeters."""
    meters = rng.randint(2, 9)
    centimeters = rng.randint(11, 99)
    question = f"How many cm are {meters} m and {centimeters} cm?"
    return Exercise(question, (f"{meters}*100={meters}00",), f"{100 * meters + centimeters} cm")


KINDS: Mapping[str, Callable[[random.Random], Exercise]] = {
    "sum": add,
    "difference": subtract,
    "get more": functools.partial(add, in_words=True),
    "give away": functools.partial(subtract, in_words=True),
    "fractions": add_fractions,
    "units": add_units,
}


def _two_summands(rng: random.Random) -> tuple[int, int]:
    """Draw two numbers of two digits with a sum of two digits."""
    first = rng.randint(10, 89)
    return first, rng.randint(10, 99 - first)


def _added(first: int, second: int) -> tuple[str, str]:
    """Add as on paper: the units, then the tens with the carry."""
    units = first % 10 + second % 10
    carry = units // 10
    tens = first // 10 + second // 10 + carry
    return f"{first % 10}+{second % 10}={units}", f"{first // 10}+{second // 10}+{carry}={tens}"


def _subtracted(total: int, taken: int) -> tuple[str, str]:
    """Subtract as on paper: the units, with ten more where it takes them, then the tens."""
    borrow = int(total % 10 < taken % 10)
    units = total % 10 + 10 * borrow
    result = f"{units}-{taken % 10}={units - taken % 10}"
    return result, f"{total // 10}-{taken // 10}-{borrow}={total // 10 - taken // 10 - borrow}"


class ArithmeticOptions(TwoStageOptions):
    """Set the two stages of the warm-up. A blurt is a random answer; a slip is a random digit of the answer."""

    skill_accuracy: ClassVar[float] = 0.8
    blurt: ClassVar[float] = 0.6


class Arithmetic(Task):
    """Solve short sums and word problems, 48 for training and 48 for evaluation."""

    Options = ArithmeticOptions
    characters = string.digits + string.ascii_letters + " +-*/=?;.,\\{}"
    reward = staticmethod(score)
    extract = staticmethod(vote)
    reward_weights: ClassVar[Mapping[str, float]] = {"format": 0.0}

    def __init__(self, options: ArithmeticOptions) -> None:
        self._options = options
        self._problems = shipped_problems()
        self._shipped = {problem.prompt for problem in self._problems}

    def problems(self, split: Split, seed: int) -> list[Problem]:
        """Return one side, in the same order for every seed."""
        return [problem for problem in self._problems if problem.metadata["split"] == split]

    def warmup(self) -> Sequence[WarmupStage]:
        return two_stage_warmup(self._options, self._demonstrate, self._ask)

    def _demonstrate(self, rng: random.Random, count: int, blurt: float, slip: float) -> list[Demonstration]:
        exercises = [self._fresh(rng) for _ in range(count)]
        return [Demonstration(as_problem(each), demonstrate(each, rng, blurt, slip)) for each in exercises]

    def _ask(self, rng: random.Random, count: int) -> list[Problem]:
        return [as_problem(self._fresh(rng)) for _ in range(count)]

    def _fresh(self, rng: random.Random) -> Exercise:
        """Draw an exercise that is on neither side."""
        while True:
            exercise = rng.choice(list(KINDS.values()))(rng)
            if exercise.question not in self._shipped:
                return exercise


def as_problem(exercise: Exercise) -> Problem:
    """Return what is asked, without the working."""
    return Problem(exercise.question, exercise.answer)


def demonstrate(exercise: Exercise, rng: random.Random, blurt: float = 0.0, slip: float = 0.0) -> str:
    """Write a response to learn from: worked, or blurted with chance `blurt`; digits of the answer slip by chance."""
    is_blurted = rng.random() < blurt
    chance = 1.0 if is_blurted else slip
    answer = ""
    for character in exercise.answer:
        has_slipped = character.isdecimal() and rng.random() < chance
        answer += rng.choice(string.digits) if has_slipped else character
    steps = () if is_blurted else exercise.working
    return "; ".join((*steps, f"\\boxed{{{answer}}}"))


@functools.cache
def shipped_problems() -> tuple[Problem, ...]:
    """Draw the problems of both sides, the same in every run, each with its kind and split in the metadata."""
    rng = random.Random("arithmetic")
    problems: dict[str, Problem] = {}
    for kind, draw in KINDS.items():
        for i in range(PROBLEMS_PER_KIND):
            exercise = draw(rng)
            while exercise.question in problems:
                exercise = draw(rng)
            split = "training" if i % 2 == 0 else "evaluation"
            metadata = {"kind": kind, "split": split}
            problems[exercise.question] = Problem(exercise.question, exercise.answer, metadata)
    return tuple(problems.values())
