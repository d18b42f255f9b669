"""Compute from a run's records how fast its last steps were, and how long it still takes."""

import math
from collections.abc import Sequence

from arl.config.recipe import Train
from arl.metrics.names import Record, number
from arl.metrics.run_status import Speed

AVERAGED = 10  # steps
CAUSES = ("groups", "bound", "device")  # of the trainer's waits
ROUNDING = 1e-9  # of a quotient of floats


def recent_speed(records: Sequence[Record]) -> Speed | None:
    """Return the means over the last steps; None: there is no step yet."""
    steps = last_steps(records, AVERAGED)

    def total(name: str) -> float:
        return sum(number(step, name) for step in steps)

    seconds = total("time/step_s")
    if not steps or seconds <= 0:
        return None
    waits: dict[str, float] = {}
    for cause in CAUSES:
        waits[cause] = total(f"wait/{cause}_s") / seconds
    idle = 0.0
    for step in steps:
        idle += number(step, "idle/engine") * number(step, "time/step_s")
    return Speed(
        steps=len(steps),
        step_seconds=seconds / len(steps),
        generated_per_s=total("tokens/generated") / seconds,
        trained_per_s=total("tokens/trained") / seconds,
        trainer_waits=waits,
        engine_idle=idle / seconds,
        gate=total("wait/gate_s") / seconds,
    )


def seconds_left(train: Train, version: int, tokens: int, speed: Speed) -> float:
    """Return how long a run still takes at this speed: until `train.steps`, or the step that reaches `train.tokens`.

    Args:
        version: that is trained.
        tokens: loss tokens that are trained.
    """
    steps = train.steps - version
    tokens_of_step = speed.trained_per_s * speed.step_seconds
    if train.tokens is not None and tokens_of_step > 0:
        by_tokens = math.ceil((train.tokens - tokens) / tokens_of_step - ROUNDING)
        steps = min(steps, by_tokens)
    return max(steps, 0) * speed.step_seconds


def last_steps(records: Sequence[Record], count: int) -> list[Record]:
    """Return the records of the last steps, the newest first; evaluations have records, too."""
    steps: list[Record] = []
    for record in reversed(records):
        if len(steps) == count:
            break
        if "time/step_s" in record:
            steps.append(record)
    return steps
