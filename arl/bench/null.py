"""Build a world whose engine, trainer and rewards cost next to nothing, to measure the controller. Torch-free.

problems ─► Controller ─► Episodes ─► Session ─► Router ─► NullEngine
              ▲  │                       └► NullRewards
              └──┴► NullTrainer
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from arl.config.recipe import WorldTraits
from arl.engine.base import Load
from arl.engine.router import Router
from arl.rollout.controller_state import ControllerState
from arl.run.world import Parts, RunContext, World, recipe_parts
from arl.types import (
    Batch,
    FinishReason,
    GenerateRequest,
    Grade,
    Increment,
    Problem,
    Response,
    StepResult,
    StepWaits,
    SwapReport,
    TrajectoryGroup,
    WeightUpdate,
)

PROMPT_IDS = tuple(range(16))
INCREMENT_IDS = (1, 2, 3, 4)
INCREMENT_LOGPROBS = (-1.0,) * len(INCREMENT_IDS)
ANSWERS_PER_TURN = 4  # few, so that the engine holds what is open, and enough to share the cost of a turn


class NullWorld(World):
    """Implement World: on the wall clock, in this process and thread, without a model and without checkpoints."""

    traits = WorldTraits(virtual_time=False, one_process=True, restarts_at_checkpoints=False)

    def __init__(self) -> None:
        self.engine = NullEngine(ANSWERS_PER_TURN)

    @contextlib.asynccontextmanager
    async def open(self, context: RunContext) -> AsyncIterator[Parts]:
        """See World."""
        yield recipe_parts(
            context,
            engine=Router([self.engine]),
            trainer=NullTrainer(),
            codec=lambda source: NullCodec(),
            rewards=lambda source: NullRewards(),
            held_out_rewards=lambda source: NullRewards(),
        )


class NullEngine:
    """Implement Engine: in every turn of the loop, the `answers` oldest requests get all tokens, in two increments."""

    def __init__(self, answers: int) -> None:
        self._answers = answers
        self._line: deque[asyncio.Future[None]] = deque()  # one for each open request
        self._turns = 0
        self._open = 0
        self.loaded_version = 0
        self.busy_seconds = 0.0

    @property
    def mean_open(self) -> float:
        """Open requests, averaged over the turns of the loop in which there were any."""
        return self._open / self._turns

    async def report(self) -> Load:
        """See ReplicaEngine."""
        raise AssertionError("the only replica is not asked for its load")

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Increment]:
        """See Engine."""
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        if not self._line:
            loop.call_soon(self._turn)
        self._line.append(answer)
        await answer
        yield self._increment(None)
        yield self._increment("stop")

    def _turn(self) -> None:
        self._turns += 1
        self._open += len(self._line)
        for _ in range(min(self._answers, len(self._line))):
            answer = self._line.popleft()
            if not answer.cancelled():
                answer.set_result(None)
        if self._line:
            asyncio.get_running_loop().call_soon(self._turn)

    def _increment(self, reason: FinishReason | None) -> Increment:
        return Increment(INCREMENT_IDS, INCREMENT_LOGPROBS, (self.loaded_version,) * len(INCREMENT_IDS), reason)

    async def pause(self) -> None:
        """See Engine."""

    async def resume(self) -> None:
        """See Engine."""

    async def update_weights(self, update: WeightUpdate) -> SwapReport:
        """See Engine."""
        self.loaded_version = update.version
        return SwapReport(update.version, 0.0, 0.0)


class NullTrainer:
    """Implement Trainer: learn nothing, at once."""

    async def step(self, batch: Batch) -> StepResult:
        """See Trainer."""
        return StepResult(batch.version + 1, {})

    async def weights(self, version: int) -> WeightUpdate:
        """See Trainer."""
        return WeightUpdate(version, "null")

    async def save(self, path: Path) -> None:
        """See Trainer."""

    async def saved(self) -> None:
        """See Trainer."""


class NullCheckpoints:
    """Implement Checkpoints: save nothing."""

    def due(self, version: int) -> bool:
        """See Checkpoints."""
        return False

    async def copy(self, version: int) -> None:
        """See Checkpoints."""

    async def write(self, state: ControllerState) -> None:
        """See Checkpoints."""

    async def prune(self) -> None:
        """See Checkpoints."""


class NullCodec:
    """Implement TextCodec: every problem has the same prompt, every answer the same text."""

    stop_token_ids: tuple[int, ...] = ()

    def encode_problem(self, problem: Problem) -> tuple[int, ...]:
        """See TextCodec."""
        return PROMPT_IDS

    def encode(self, text: str) -> tuple[int, ...]:
        """See TextCodec."""
        return ()

    def decode(self, token_ids: tuple[int, ...]) -> str:
        """See TextCodec."""
        return ""

    def decode_all(self, sequences: Sequence[Sequence[int]], special_tokens: bool = False) -> list[str]:
        """See TextCodec."""
        return [""] * len(sequences)


class NullRewards:
    """Implement Rewards: every response gets 1."""

    async def score(self, problem: Problem, response: Response) -> Grade:
        """See Rewards."""
        return Grade(1.0)


class NullObserver:
    """Implement Observer: record nothing."""

    def group_finished(self, group: TrajectoryGroup) -> None:
        """See Observer."""

    def group_lost(self, group: TrajectoryGroup, fate: str, cause: BaseException | None) -> None:
        """See Observer."""

    def swapped(self, report: SwapReport) -> None:
        """See Observer."""

    def step_finished(self, batch: Batch, result: StepResult, waits: StepWaits) -> None:
        """See Observer."""
