"""Seams that cost next to nothing, so that what is measured is the controller. On the wall clock, and torch-free."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from arl.engine.base import Load
from arl.rollout.controller_state import ControllerState
from arl.types import (
    Batch,
    FinishReason,
    GenerateRequest,
    Increment,
    Problem,
    StepResult,
    SwapReport,
    TrajectoryGroup,
    WeightUpdate,
)

PROMPT_IDS = tuple(range(16))
INCREMENT_IDS = (1, 2, 3, 4)
INCREMENT_LOGPROBS = (-1.0,) * len(INCREMENT_IDS)


class NullEngine:
    """In every turn of the loop, the `answers` oldest requests get all their tokens, in two increments."""

    def __init__(self, answers: int) -> None:
        self._answers = answers
        self._line: deque[asyncio.Future[None]] = deque()  # one for each open request
        self._turns = self._open = 0
        self.loaded_version = 0
        self.busy_seconds = 0.0

    @property
    def mean_open(self) -> float:
        """Open requests, averaged over the turns of the loop in which there were any."""
        return self._open / self._turns

    async def report(self) -> Load:
        raise AssertionError("the only replica is not asked for its load")

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Increment]:
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
        pass

    async def resume(self) -> None:
        pass

    async def update_weights(self, update: WeightUpdate) -> SwapReport:
        self.loaded_version = update.version
        return SwapReport(update.version, 0.0, 0.0)


class NullTrainer:
    """Learns nothing, at once."""

    async def step(self, batch: Batch) -> StepResult:
        return StepResult(batch.version + 1, {})

    async def weights(self, version: int) -> WeightUpdate:
        return WeightUpdate(version, "")

    async def save(self, path: Path) -> None:
        pass

    async def saved(self) -> None:
        """See Trainer."""


class NullCheckpoints:
    """Nothing is saved."""

    def due(self, version: int) -> bool:
        return False

    async def copy(self, version: int) -> None:
        pass

    async def write(self, state: ControllerState) -> None:
        pass


class NullCodec:
    """Every problem has the same prompt, every answer the same text."""

    stop_token_ids: tuple[int, ...] = ()

    def encode_problem(self, problem: Problem) -> tuple[int, ...]:
        return PROMPT_IDS

    def encode(self, text: str) -> tuple[int, ...]:
        return ()

    def decode(self, token_ids: tuple[int, ...]) -> str:
        return ""


class NullRewards:
    async def score(self, problem: Problem, responses: Sequence[str], truncated: Sequence[bool]) -> list[float]:
        return [1.0] * len(responses)


class NullObserver:
    def group_finished(self, group: TrajectoryGroup) -> None:
        pass

    def group_lost(self, group: TrajectoryGroup, fate: str, cause: BaseException | None) -> None:
        pass

    def swapped(self, report: SwapReport) -> None:
        pass

    def step_finished(self, batch: Batch, result: StepResult, waited: float) -> None:
        pass
