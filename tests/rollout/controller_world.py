"""Run the real controller on virtual time, with a null engine, trainer and rewards, on schedules that are drawn."""

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from arl import clock
from arl.config.recipe import Deadlines, Rollout
from arl.data import msgpack_arrays
from arl.data.problem_order import ProblemOrder
from arl.engine.router import Router
from arl.rollout.base import Segment
from arl.rollout.controller import Controller
from arl.rollout.controller_state import ControllerState
from arl.rollout.env import Env, Session, single_turn
from arl.rollout.env_watch import EnvWatch
from arl.rollout.episodes import Episodes
from arl.rollout.exact_lag import LagSchedule
from arl.rollout.filters import Filter, keep_all
from arl.rollout.problem_queue import TailGate, TailRounds
from arl.rollout.staleness import Admission, StalenessGate
from arl.types import Problem
from tests.fakes import NullCheckpoints, NullCodec, NullEngine, NullObserver, NullRewards, NullTrainer

NEVER_ENDED_BY_FAILURES: dict[str, Any] = {"max_failed_share": 0.999, "max_rejected_share": 0.999}


PATIENT = Deadlines(step=6e5, swap=1e5, generate=6e5)


class CheckedGate(StalenessGate):
    """Holds both inequalities of docs/staleness.md against every event."""

    def admit(self, loaded_version: int) -> int:
        deadline = super().admit(loaded_version)
        assert self.num_trained + self.num_outstanding <= (deadline + 1) * self.problems_per_step  # (A)
        return deadline

    def is_open(self, loaded_version: int) -> bool:
        self._check()
        return super().is_open(loaded_version)

    def first_blocking(self, version: int, chosen: Counter[int]) -> int | None:
        self._check()
        return super().first_blocking(version, chosen)

    def _check(self) -> None:
        """(S), between two steps."""
        version, amid = divmod(self.num_trained, self.problems_per_step)
        due = 0
        for deadline in sorted(self._outstanding) if not amid else []:
            due += self._outstanding[deadline]
            assert due <= (deadline - version + 1) * self.problems_per_step


@dataclass
class World:
    """A controller with null engine and trainer on virtual time."""

    rollout: Rollout
    steps: int
    length_of: Callable[[int], int] = lambda seed: 1 + seed % 7
    step_seconds: float = 5.0
    swap_seconds: float = 0.5
    score: Callable[[Problem], float] = lambda _: 1.0
    deadlines: Deadlines = PATIENT
    checkpoint_every: int = 0
    seconds_of: Callable[[int], float] = lambda _: 1.0
    replicas: int = 1
    env: Env = single_turn
    keep: Filter = keep_all
    crash_at: float | None = None
    stop_at: float | None = None
    lags: np.ndarray | None = None
    until: int | None = None
    tokens: int | None = None
    interrupt: bool = True
    every: int = 1  # sync.every
    restored: ControllerState | None = None
    serves_newest: bool = False  # after a resume on the wall clock
    beside: Callable[[], Coroutine[Any, Any, None]] | None = None  # goes on until the controller is done

    def __post_init__(self) -> None:
        self.first = self.restored.version if self.restored else 0
        self.trainer = NullTrainer(self.step_seconds, self.first)
        self.observer = NullObserver()
        self.checkpoints = NullCheckpoints(self.checkpoint_every, self.steps)
        self.make_router = self._fixed_engines

    def run(self) -> "World":
        state, start = self.restored, 0.0
        if self.crash_at is not None:
            with contextlib.suppress(TimeoutError):
                clock.run(lambda: asyncio.wait_for(self._main(None), self.crash_at), virtual=True)
            start, state = self.saved()
            self.trainer.version = state.version if state else 0
            del self.trainer.batches[self.trainer.version :]
        clock.run(lambda: self._main(state), virtual=True, start=start)
        return self

    def saved(self) -> tuple[float, ControllerState | None]:
        """Return when the newest checkpoint was written, and its state; None: there is none."""
        if not self.checkpoints.states:
            return 0.0, None
        seconds, data = self.checkpoints.states[max(self.checkpoints.states)]
        return seconds, msgpack_arrays.decoder(ControllerState).decode(data)

    async def _main(self, restored: ControllerState | None) -> None:
        self.controller = self._make(restored)
        if self.stop_at is not None:
            asyncio.get_running_loop().call_later(self.stop_at, self.controller.stop)
        async with asyncio.TaskGroup() as tasks:
            beside = None if self.beside is None else tasks.create_task(self.beside())
            await self.controller.run()
            if beside is not None:
                beside.cancel()
        self.seconds = clock.now()

    def _make(self, restored: ControllerState | None) -> Controller:
        served = restored.loaded_version if restored else 0
        if restored and self.serves_newest:
            served = restored.version
        self.trainer.engine = self.engine = self.make_router(served)
        rewards = NullRewards(self.score)
        self.episodes = Episodes(
            self.engine,
            NullCodec(),
            rewards,
            self.env,
            EnvWatch("tests:env"),
            self.rollout,
            seed=0,
            max_length=100_000,
        )
        problems = ProblemOrder([Problem(str(i)) for i in range(50)], seed=0)
        admission = self._admission()
        return Controller(
            Segment(
                rollout=self.rollout,
                deadlines=self.deadlines,
                steps=self.steps,
                tokens=self.tokens,
                engine=self.engine,
                trainer=self.trainer,
                admission=admission,
                problems=problems,
                groups=self.episodes,
                gate_meter=self.episodes.gate_meter,
                tail=self.tail,
                drain=None if self.interrupt else self.episodes.drain,
                keep=self.keep,
                lease=None,
            ),
            self.until or self.steps,
            self.observer,
            self.checkpoints,
            restored,
        )

    def _fixed_engines(self, served: int) -> Router:
        swaps = [self.swap_seconds * (i + 1) for i in range(self.replicas)]
        return Router([NullEngine(self.length_of, swap, self.seconds_of, served) for swap in swaps])

    def state(self) -> ControllerState:
        """Of the controller before it runs."""
        return clock.run(self._state, virtual=True)

    async def _state(self) -> ControllerState:
        return self._make(self.restored).state()

    def _admission(self) -> Admission:
        self.tail = None
        if self.rollout.tail_batching is not None:
            self.tail = TailRounds(self.rollout.problems_per_step, self.rollout.tail_batching.oversample)
            return TailGate(self.tail)
        if self.lags is not None:
            return LagSchedule(self.lags)
        return CheckedGate(self.rollout.problems_per_step, self.rollout.max_age, self.every)

    def check_accounts(self, *earlier: "World") -> None:
        """Check that no group was trained twice, also by `earlier` runs, and that each is accounted for."""
        batches = [batch for world in (*earlier, self) for batch in world.trainer.batches]
        trained = [group.group_id for batch in batches for group in batch.groups]
        ledger = self.controller.ledger
        assert len(set(trained)) == len(trained) == ledger.trained
        assert ledger.admitted == ledger.trained + ledger.lost.total()

    def ages(self) -> list[int]:
        """Oldest token age of every trained trajectory."""
        return [
            batch.version - int(t.policy_versions[t.loss_mask].min())
            for batch in self.trainer.batches
            for group in batch.groups
            for t in group.trajectories
        ]


def heavy_tailed(one_in: int, factor: int) -> Callable[[int], int]:
    """Lengths 1..9, and one request in `one_in` is `factor` times longer."""
    return lambda seed: (1 + seed % 9) * (factor if seed // 9 % one_in == 0 else 1)


def slow(one_in: int, factor: float) -> Callable[[int], float]:
    """A second a token, and `factor` seconds for one request in `one_in`: a straggler of few events."""
    return lambda seed: factor if seed // 9 % one_in == 0 else 1.0


def failing(one_in: int) -> Env:
    """Ask once; one episode in `one_in` then raises, whatever its siblings are doing. 0: none does."""
    episodes = itertools.count(1)

    async def env(problem: Problem, session: Session) -> None:
        await single_turn(problem, session)
        if one_in and next(episodes) % one_in == 0:
            raise ValueError("this episode fails")

    return env


def scheduled(s: dict[str, Any], rollout: Rollout, steps: int, **options: Any) -> World:
    """Lengths 1..9, and the speeds, replicas and failures of schedule `s`."""
    return World(
        rollout,
        steps,
        lambda seed: 1 + seed % 9,
        s["step_seconds"],
        s["swap_seconds"],
        seconds_of=slow(s["one_in"], s["factor"]),
        replicas=s["replicas"],
        env=failing(s["fail_one_in"]),
        **options,
    )


schedules = st.fixed_dictionaries(
    {
        "problems": st.integers(1, 5),
        "staleness": st.one_of(st.none(), st.integers(0, 6)),
        "late": st.sampled_from(["wait", "drop"]),
        "spare": st.sampled_from([None, 0, 1, 7]),  # rollout.max_groups - problems
        "one_in": st.integers(2, 40),
        "factor": st.sampled_from([1.0, 10.0, 1000.0]),
        "fail_one_in": st.sampled_from([0, 3, 7, 20]),
        "replicas": st.integers(1, 3),
        "step_seconds": st.sampled_from([0.0, 0.3, 4.0, 60.0]),
        "swap_seconds": st.sampled_from([0.0, 0.7, 11.0]),
        "every": st.integers(1, 7),
        "reject_one_in": st.sampled_from([0, 2, 5]),
        "checkpoint_every": st.integers(1, 4),
        "crash_at": st.sampled_from([None, 5.0, 60.0, 1500.0]),
    }
)


def rules(s: dict[str, Any]) -> Rollout:
    """Those of schedule `s`; without a bound there is always a cap, and no group is late."""
    p, spare, bound = s["problems"], s["spare"], s["staleness"]
    if bound is None:
        spare = spare or 0
    return Rollout(
        problems_per_step=p,
        group_size=2,
        staleness=bound,
        late="wait" if bound is None else s["late"],
        max_groups=None if spare is None else p + spare,
        **NEVER_ENDED_BY_FAILURES,
    )
