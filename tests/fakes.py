"""Stand in for engine, trainer and the rest in tests of the controller: without weights, on virtual time.

They cost virtual seconds, follow a script and remember what they were given. The parts of arl.bench.null have the same
names; they do as little as possible, because there the controller itself is measured.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from arl.clock import now
from arl.data import msgpack_arrays
from arl.engine.base import Engine, Load
from arl.rollout.controller_state import ControllerState
from arl.types import (
    Batch,
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


class NullEngine:
    """Answers a request with `length_of(seed)` tokens, each of which takes `seconds_of(seed)` virtual seconds."""

    def __init__(
        self,
        length_of: Callable[[int], int],
        swap_seconds: float = 0.0,
        seconds_of: Callable[[int], float] = lambda _: 1.0,
        version: int = 0,
    ) -> None:
        self._length_of = length_of
        self._seconds_of = seconds_of
        self.loaded_version = version
        self.swap_seconds = swap_seconds
        self._running = asyncio.Event()
        self._running.set()
        self.busy_seconds = 0.0

    async def report(self) -> Load:
        return Load(running=0, waiting=0, slots=8, tokens=0, capacity=1000)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Increment]:
        seed = request.sampling.seed
        length = self._length_of(seed)
        seconds = self._seconds_of(seed)
        # A prompt is one token (NullCodec). What follows it was sampled before the run was resumed.
        num_sampled = min(len(request.input_ids) - 1, length - 1)
        for position in range(num_sampled, length):
            await asyncio.sleep(seconds)
            await self._running.wait()
            is_last = position == length - 1
            yield Increment((position,), (-1.0,), (self.loaded_version,), "stop" if is_last else None)

    async def pause(self) -> None:
        self._running.clear()

    async def resume(self) -> None:
        self._running.set()

    async def update_weights(self, update: WeightUpdate) -> SwapReport:
        await asyncio.sleep(self.swap_seconds)
        assert update.version > self.loaded_version
        self.loaded_version = update.version
        return SwapReport(update.version, self.swap_seconds, self.swap_seconds)


class NullTrainer:
    """Takes virtual seconds for each step, and remembers the batches."""

    def __init__(self, step_seconds: float = 1.0, version: int = 0) -> None:
        self.step_seconds = step_seconds
        self.version = version
        self.engine: Engine | None = None  # which is watched, where a test sets it
        self.versions_ahead: list[int] = []  # of that engine, when each step began
        self.batches: list[Batch] = []
        self.saves: list[str] = []

    async def step(self, batch: Batch) -> StepResult:
        assert batch.version == self.version
        if self.engine is not None:
            self.versions_ahead.append(self.version - self.engine.loaded_version)
        await asyncio.sleep(self.step_seconds)
        self.batches.append(batch)
        self.version += 1
        return StepResult(batch.version + 1, {})

    async def weights(self, version: int) -> WeightUpdate:
        return WeightUpdate(version, "")

    async def save(self, path: Path) -> None:
        self.saves.append(path.name)

    async def saved(self) -> None:
        pass


class NullObserver:
    """Remembers every event."""

    def __init__(self) -> None:
        self.finished: list[TrajectoryGroup] = []
        self.lost: list[tuple[TrajectoryGroup, str]] = []
        self.swaps: list[SwapReport] = []
        self.swap_times: list[float] = []  # clock seconds
        self.waits: list[float] = []

    def group_finished(self, group: TrajectoryGroup) -> None:
        self.finished.append(group)

    def group_lost(self, group: TrajectoryGroup, fate: str, cause: BaseException | None) -> None:
        self.lost.append((group, fate))

    def swapped(self, report: SwapReport) -> None:
        self.swaps.append(report)
        self.swap_times.append(now())

    def step_finished(self, batch: Batch, result: StepResult, waits: StepWaits) -> None:
        self.waits.append(waits.total)


class NullCodec:
    """Encodes every problem as one token."""

    stop_token_ids: tuple[int, ...] = ()

    def encode_problem(self, problem: Problem) -> tuple[int, ...]:
        return (7,)

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(map(ord, text))

    def decode(self, token_ids: tuple[int, ...]) -> str:
        return " ".join(map(str, token_ids))

    def decode_all(self, sequences: Sequence[Sequence[int]], special_tokens: bool = False) -> list[str]:
        return [self.decode(tuple(sequence)) for sequence in sequences]


class NullRewards:
    """Scores by a function of the problem, which may raise."""

    def __init__(self, score: Callable[[Problem], float] = lambda _: 1.0) -> None:
        self._score = score

    async def score(self, problem: Problem, response: Response) -> Grade:
        return Grade(self._score(problem))


class NullCheckpoints:
    """Keeps every state as bytes, with its time."""

    def __init__(self, every: int, steps: int) -> None:
        self._every = every
        self._steps = steps
        self.states: dict[int, tuple[float, bytes]] = {}

    def due(self, version: int) -> bool:
        return version == self._steps or (self._every > 0 and version % self._every == 0)

    async def copy(self, version: int) -> None:
        pass

    async def write(self, state: ControllerState) -> None:
        self.states[state.version] = now(), msgpack_arrays.encoder().encode(state)

    async def prune(self) -> None:
        pass
