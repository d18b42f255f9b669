"""Draw signals from a seed: which run, which role, which signal, and when.

seed ─► Variant of each run ─► Shots, one for each attempt of it ─► StormRun
"""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Action = Literal["kill", "terminate", "stop", "pause"]
Phase = Literal["start-up", "training"]
ACTIONS: tuple[Action, ...] = ("kill", "terminate", "stop", "pause")
ROLES = ("controller", "trainer", "engine", "reward worker", "evaluator", "guard")
TRANSPORTS = {"embedded": ("file", "broadcast"), "sglang": ("file", "broadcast", "ipc")}  # between processes on a CPU
SHOTS_OF_A_RUN = 4
LONGEST_DELAY = 6.0  # seconds of a start that is hit, from when the process is there
LONGEST_WORKER_DELAY = 0.5  # a reward worker may live for little longer
LONGEST_PAUSE = 8.0
LATEST_STEP = 20  # of an attempt


@dataclass(frozen=True)
class Variant:
    """Say how a run is laid out."""

    mode: str
    kind: str  # engine.kind
    transport: str  # sync.transport
    ranks: int
    replicas: int

    @property
    def evaluates(self) -> bool:
        """Return whether versions are evaluated beside the run."""
        return self.ranks == self.replicas


@dataclass(frozen=True)
class Shot:
    """Say what happens to whom, and when.

    Args:
        action: kill: SIGKILL · terminate: SIGTERM · stop: SIGSTOP for good · pause: SIGSTOP, then SIGCONT.
        role: one of ROLES.
        phase: start-up: so many seconds after a process of the role is there · training: after so many steps.
        delay: these seconds.
        step: these steps, of the attempt.
        seconds: until a pause ends.
    """

    action: Action
    role: str
    phase: Phase
    delay: float
    step: int
    seconds: float


def draw_runs(seed: int, num_shots: int, kinds: Sequence[str]) -> list[tuple[Variant, list[Shot]]]:
    """Return the runs with the shots of each. Variants, roles and signals come equally often, as far as may be."""
    source = random.Random(seed)
    layouts = itertools.product(kinds, ("disaggregated", "collocated"), (1, 2), (1, 2))
    every = [
        Variant(mode, kind, transport, ranks, replicas)
        for kind, mode, ranks, replicas in layouts
        for transport in TRANSPORTS[kind]
    ]
    variants = itertools.cycle(source.sample(every, len(every)))
    targets = list(itertools.product(ACTIONS, ROLES))
    deck = itertools.cycle(source.sample(targets, len(targets)))
    runs = []
    for first in range(0, num_shots, SHOTS_OF_A_RUN):
        variant = next(variants)
        possible = (target for target in deck if variant.evaluates or target[1] != "evaluator")
        drawn = itertools.islice(possible, min(num_shots - first, SHOTS_OF_A_RUN))
        runs.append((variant, [_draw_shot(source, *target) for target in drawn]))
    return runs


def _draw_shot(source: random.Random, action: Action, role: str) -> Shot:
    longest = LONGEST_WORKER_DELAY if role == "reward worker" else LONGEST_DELAY
    return Shot(
        action=action,
        role=role,
        phase=source.choice(("start-up", "training")),
        delay=source.uniform(0.0, longest),
        step=source.randint(1, LATEST_STEP),
        seconds=source.uniform(0.1, LONGEST_PAUSE),
    )
