"""Warm a tiny model up in two stages: it learns the skill of a task, and then bad habits, which RL must remove.

    skill   right demonstrations, until sampled accuracy on fresh problems reaches skill_accuracy
    habits  demonstrations with blurts (answers without working) and slips (errors), for habit_steps

A task brings the demonstrations, and names the first stage. Everything else is in its options.
"""

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Protocol

from arl.config.section import Section
from arl.tasks.base import Demonstration, WarmupStage
from arl.types import Problem


class TwoStageOptions(Section):
    """Set the length, the learning rates and the bad habits of the two stages. A task may have other constants."""

    skill_accuracy: ClassVar[float] = 0.95  # sampled, on fresh problems: ends the first stage
    skill_steps: ClassVar[int] = 800  # after which the first stage fails
    skill_learning_rate: ClassVar[float] = 2e-3  # peak; 50 steps of ramp, then linear to 10 % at skill_steps
    habit_steps: ClassVar[int] = 50
    habit_learning_rate: ClassVar[float] = 1e-3  # constant
    blurt: ClassVar[float] = 0.7  # share of the second stage's demonstrations that answer without working
    slip: ClassVar[float] = 0.1  # chance of an error at each of its working steps


class Demonstrate(Protocol):
    """Draw `count` demonstrations, which show the bad habits with the chances `blurt` and `slip`."""

    def __call__(self, rng: random.Random, count: int, blurt: float, slip: float) -> Sequence[Demonstration]: ...


def two_stage_warmup(
    options: TwoStageOptions,
    skill_name: str,
    demonstrate: Demonstrate,
    ask: Callable[[random.Random, int], Sequence[Problem]],
) -> list[WarmupStage]:
    """Return the two stages.

    Args:
        skill_name: of the first stage, for progress lines.
        demonstrate: draws what both stages show.
        ask: draws so many questions, on which accuracy is measured.
    """
    skill = WarmupStage(
        name=skill_name,
        demonstrate=partial(demonstrate, blurt=0.0, slip=0.0),
        ask=ask,
        steps=options.skill_steps,
        learning_rate=options.skill_learning_rate,
        target_accuracy=options.skill_accuracy,
    )
    habits = WarmupStage(
        name="with bad habits",
        demonstrate=partial(demonstrate, blurt=options.blurt, slip=options.slip),
        ask=ask,
        steps=options.habit_steps,
        learning_rate=options.habit_learning_rate,
        schedule="constant",
    )
    return [skill, habits]
