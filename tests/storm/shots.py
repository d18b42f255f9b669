"""Draw signals from a seed: which run, which role, which signal, and when.

seed ─► Variant of each run ─► Shots, one for each attempt of it ─► StormRun
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

Action = Literal["kill", "terminate", "stop", "pause"]
Phase = Literal["start-up", "training"]
Card = TypeVar("Card")
ACTIONS: tuple[Action, ...] = ("kill", "terminate", "stop", "pause")
ROLES = (
    "controller",
    "trainer",
    "engine",
    "reward worker",
    "reward worker",
    "evaluator",
    "evaluation engine",
    "guard",
)
SHOTS_OF_A_RUN = 4
LONGEST_DELAY = 6.0  # seconds of a start that is hit, from when the process is there
SHORT_LIVED = {"reward worker": 0.5, "evaluation engine": 0.5}  # these may live for little longer
LONGEST_PAUSE = 8.0
LATEST_STEP = 20  # of an attempt


@dataclass(frozen=True)
class Variant:
    """Say how a run is laid out.

    Args:
        kind: engine.kind.
        transport: sync.transport.
    """

    mode: str
    kind: str
    transport: str
    ranks: int
    replicas: int
    evaluates: bool

    def __str__(self) -> str:
        evaluates = ", evaluates" if self.evaluates else ""
        return f"{self.mode}, {self.kind} by {self.transport}, {self.ranks} ranks, {self.replicas} engines{evaluates}"


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
    delay: float = 0.0
    step: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        how_long = f" for {self.seconds:.1f} s" if self.seconds else ""
        when = f"{self.delay:.1f} s after its start" if self.phase == "start-up" else f"after {self.step} steps"
        return f"{self.action} {self.role}{how_long} {when}"


def every_variant(kinds: Sequence[str]) -> list[Variant]:
    """Return the layouts that work on a CPU with processes: `memory` needs one process, `ipc` needs SGLang."""
    transports = {"embedded": ("file", "broadcast"), "sglang": ("file", "broadcast", "ipc")}
    return [
        Variant(mode, kind, transport, ranks, replicas, evaluates=ranks == replicas)
        for kind in kinds
        for mode in ("disaggregated", "collocated")
        for transport in transports[kind]
        for ranks in (1, 2)
        for replicas in (1, 2)
    ]


def draw_runs(seed: int, num_shots: int, kinds: Sequence[str]) -> list[tuple[Variant, list[Shot]]]:
    """Return the runs with the shots of each. Variants, roles and signals come equally often, as far as may be."""
    source = random.Random(seed)
    variants = _endless(source, every_variant(kinds))
    targets = [(action, role) for action in ACTIONS for role in ROLES]
    beside = _endless(source, [target for target in targets if target[1].startswith("evaluat")])
    others = _endless(source, [target for target in targets if not target[1].startswith("evaluat")])
    runs = []
    left = num_shots
    while left:
        variant = next(variants)
        count = min(left, SHOTS_OF_A_RUN)
        # A run that evaluates has these roles besides, and hits each of them as often as a common one.
        drawn = [next(beside if variant.evaluates and number % 2 else others) for number in range(count)]
        runs.append((variant, [_draw_shot(source, *target) for target in drawn]))
        left -= count
    return runs


def _endless(source: random.Random, deck: Sequence[Card]) -> Iterator[Card]:
    """Deal a deck again and again, shuffled anew each time."""
    for _ in itertools.count():
        yield from source.sample(deck, len(deck))


def _draw_shot(source: random.Random, action: Action, role: str) -> Shot:
    phase: Phase = source.choice(("start-up", "training"))
    return Shot(
        action,
        role,
        phase,
        delay=source.uniform(0.0, SHORT_LIVED.get(role, LONGEST_DELAY)) if phase == "start-up" else 0.0,
        step=source.randint(1, LATEST_STEP) if phase == "training" else 0,
        seconds=source.uniform(0.1, LONGEST_PAUSE) if action == "pause" else 0.0,
    )
