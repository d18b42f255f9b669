"""Put a recording behind the controller's seams: problems, groups, engine and admission.

admission k ─► group k of the recording ─► its trajectories, at the time of their arrival ─► buffer, or lost as it was
trainer ─► new version ─► RecordedEngine ─► loaded at the time when it was loaded
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from arl.clock import now
from arl.config.rollout_section import UNREACHED_AGE
from arl.data.problem_order import ProblemOrder
from arl.data.text_codec import TextCodec
from arl.engine.base import Engine
from arl.errors import Lost
from arl.rollout.base import Drain
from arl.rollout.env import Session
from arl.rollout.ledger import GateMeter, GroupMeter
from arl.rollout.staleness import StalenessGate
from arl.run.replay.recording import RecordedGroup
from arl.train.in_process import InProcessTrainer
from arl.types import (
    REJECTED,
    TRAINED,
    Batch,
    GenerateRequest,
    Grade,
    Increment,
    Problem,
    SamplingParams,
    StepResult,
    SwapReport,
    Trajectory,
    Turn,
    WeightUpdate,
)

TOO_OLD = "too old for this bound"
TOO_NEW = "sampled by a later version"


class RecordedOrder(ProblemOrder):
    """Hand out the problems of a recording in the order of their admission."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__((), seed=0, weights={})
        self._problems = problems
        self._given = 0

    @property
    def position(self) -> int:
        return self._given

    def __next__(self) -> Problem:
        self._given += 1
        return self._problems[self._given - 1]


class RecordedGate(StalenessGate):
    """Implement Admission by the staleness gate, which closes after the last group of a recording.

    A group does not start at an older version than it did, unless its due version is not older than its newest token.
    Otherwise a step would wait for a token that a later version samples.
    """

    def __init__(self, groups: Sequence[RecordedGroup], problems_per_step: int, staleness: int) -> None:
        super().__init__(problems_per_step, staleness)
        self._groups = groups
        self._admitted = 0

    def is_open(self, loaded_version: int) -> bool:
        if self._admitted == len(self._groups) or not super().is_open(loaded_version):
            return False
        recorded = self._groups[self._admitted]
        if loaded_version >= recorded.group.dispatch_version or not recorded.is_scored:
            return True
        return recorded.versions[1] <= loaded_version + self.staleness

    def admit(self, loaded_version: int) -> int:
        deadline = super().admit(loaded_version)
        self._admitted += 1
        return deadline


class RecordedSchedule(RecordedGate):
    """Implement Admission for a replay that changes no rule: step v consumes what it consumed, in the same order.

    The due version of a group is replaced by its place in the order of training, v·P + i, so that neither equal times
    nor jitter can change a batch. Engines load the versions that they loaded. This never gets stuck, because every
    event waits only for events that are before it in the recording.
    """

    def __init__(self, groups: Sequence[RecordedGroup], loaded: Iterable[int], problems_per_step: int) -> None:
        super().__init__(groups, problems_per_step, staleness=len(groups))  # no bound but the recorded one
        self._loaded = sorted(loaded)

    def is_open(self, loaded_version: int) -> bool:
        return super().is_open(loaded_version) and loaded_version >= self._groups[self._admitted].group.dispatch_version

    def admit(self, loaded_version: int) -> int:
        place = self._groups[self._admitted].place
        if place is None:  # it was lost, and so is in no batch
            place = len(self._groups)
        self._admitted += 1
        return self._begin(place)

    def first_blocking(self, version: int, chosen: Counter[int]) -> int | None:
        last = max(chosen)
        end = (version + 1) * self.problems_per_step  # the first place of the next step
        return None if last < end else last

    def next_version(self, loaded_version: int, version: int, running: int) -> int | None:
        recorded = next((u for u in self._loaded if u > loaded_version), version)
        return recorded if loaded_version < recorded <= version else None


class PacedTrainer(InProcessTrainer):
    """Train in this process, in the recorded seconds of each step, for groups that wait for its versions."""

    def __init__(self, seconds: Sequence[float], *args: Any) -> None:
        super().__init__(*args)
        self._seconds = seconds
        self._version = 0
        self._idle_since = now()  # the end of the last step
        self._stepped = asyncio.Event()

    async def step(self, batch: Batch) -> StepResult:
        """See Trainer."""
        self._costs = self._costs.model_copy(update={"train_step": self._seconds[batch.version]})
        result = await super().step(batch)
        self._version = result.version
        self._idle_since = now()
        self._stepped.set()
        self._stepped = asyncio.Event()
        return result

    async def reached(self, version: int, timeout: float) -> bool:
        """Wait until `version` exists, and return True; False if no step ended for `timeout` seconds.

        Unblocked by the end of a step.
        """
        while self._version < version:
            try:
                async with asyncio.timeout_at(self._idle_since + timeout):
                    await self._stepped.wait()
            except TimeoutError:
                return False
        return True


class RecordedEngine:
    """Implement Engine without generating: its versions are loaded when every recorded engine had them, or a newer one.

    Args:
        loaded: version -> clock seconds at which every recorded engine had it.
    """

    busy_seconds = 0.0

    def __init__(self, loaded: dict[int, float]) -> None:
        self._loaded = loaded
        self.loaded_version = 0

    def generate(self, request: GenerateRequest) -> AsyncIterator[Increment]:
        raise AssertionError(f"a recording was asked to generate {request.request_id}")

    async def pause(self) -> None:
        """See Engine. Nothing runs here."""

    async def resume(self) -> None:
        """See Engine. Nothing runs here."""

    async def update_weights(self, update: WeightUpdate) -> SwapReport:
        """See Engine."""
        begin = now()
        served = min((at for version, at in self._loaded.items() if version >= update.version), default=begin)
        await asyncio.sleep(max(served - begin, 0.0))
        self.loaded_version = update.version
        return SwapReport(update.version, 0.0, now() - begin)


class RecordedEpisode(Session):
    """Present a recorded episode as a session that the controller can ask."""

    def __init__(self, recorded: RecordedGroup, trajectory: Trajectory, engine: Engine, codec: TextCodec) -> None:
        prompt = trajectory.token_ids[: trajectory.prompt_length]
        name = f"g{recorded.group.group_id}"
        super().__init__(
            engine,
            codec,
            sampling=SamplingParams(0),
            prompt_ids=tuple(prompt.tolist()),
            max_length=len(trajectory.token_ids),
            episode_id=name,
            affinity=name,
        )
        self.recorded = recorded
        self._trajectory = trajectory

    def trajectories(self, grade: Grade) -> tuple[Trajectory, ...]:
        del grade
        return (self._trajectory,)


@dataclass
class RecordedGroups:
    """Implement Groups: the controller's group k is group k of the recording. It ends when that ended, or at once."""

    groups: Sequence[RecordedGroup]
    engine: RecordedEngine
    codec: TextCodec
    trainer: PacedTrainer
    timeout: float
    """Seconds without a step after which no further version will ever exist."""
    bound: int | None
    """η of this replay, or rollout_section.UNREACHED_AGE. A group that it cannot use is lost: under a bound one with a
    token from before the loaded version or from a version after its due version, and always one with a token of a
    version that is never made here. None: every group ends as it did."""
    gate_meter: GateMeter = field(default_factory=GateMeter)
    drain: Drain = field(default_factory=Drain)  # of nothing: what was recorded is interrupted as it was
    meter: GroupMeter = field(default_factory=GroupMeter)  # nothing is graded again

    def open(self, name: str, problem: Problem, journals: Sequence[tuple[Turn, ...]] = ()) -> list[Session]:
        """See arl.rollout.episodes.Episodes."""
        del problem, journals
        group_id = int(name.removeprefix("g"))
        recorded = self.groups[group_id]
        if not recorded.group.trajectories:
            raise Lost(recorded.fate)
        return [RecordedEpisode(recorded, t, self.engine, self.codec) for t in recorded.group.trajectories]

    async def run(self, problem: Problem, sessions: Sequence[Session]) -> tuple[Trajectory, ...]:
        """Return the recorded trajectories when their time has come.

        Raises:
            Lost: the group was lost, or cannot be used here.
        """
        del problem
        episode = sessions[0]
        assert isinstance(episode, RecordedEpisode)
        recorded = episode.recorded
        finished = recorded.fate == TRAINED or (recorded.fate == REJECTED and recorded.is_scored)
        bound = self.bound if finished else None
        oldest, newest = recorded.versions
        if bound is not None and bound < UNREACHED_AGE:
            loaded = self.engine.loaded_version
            if oldest < loaded or newest > loaded + bound:
                raise Lost(TOO_OLD)
        await asyncio.sleep(recorded.group.arrival_time - now())
        if bound is not None:
            if not await self.trainer.reached(newest, self.timeout):
                raise Lost(TOO_NEW)
        elif recorded.fate != TRAINED:
            raise Lost(recorded.fate)
        return recorded.group.trajectories
