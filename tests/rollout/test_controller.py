"""The controller keeps its promises in virtual time, on any schedule."""

import asyncio
import contextlib
import itertools
import random
import re
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl import clock
from arl.config.recipe import Deadlines, Rollout
from arl.config.rollout_section import TailBatching
from arl.data import msgpack_arrays
from arl.data.problems import ProblemOrder
from arl.engine.router import Router
from arl.errors import Rejected, RunError, leaves
from arl.rollout.base import Admission
from arl.rollout.controller import Controller
from arl.rollout.controller_state import ControllerState
from arl.rollout.env import Env, Session, single_turn
from arl.rollout.episodes import Episodes
from arl.rollout.exact_lag import LagSchedule
from arl.rollout.failure_window import WindowState
from arl.rollout.filters import Filter, keep_all
from arl.rollout.problem_queue import Attempt
from arl.rollout.segment import Segment
from arl.rollout.staleness import StalenessGate
from arl.rollout.swap_pace import AT_ONCE, SwapPace
from arl.rollout.tail_rounds import TailGate, TailRounds
from arl.types import FAILED, FAILED_REQUEUED, LATE_REQUEUED, REJECTED, SET_ASIDE, Completion, Problem, Trajectory
from tests.examples import examples
from tests.fakes import NullCheckpoints, NullCodec, NullEngine, NullLease, NullObserver, NullRewards, NullTrainer

NEVER_ENDED_BY_FAILURES: dict[str, Any] = {"failure_window": 10_000, "reject_window": 10_000}
PATIENT = Deadlines(step=6e5, swap=1e5, generate=6e5)


class CheckedGate(StalenessGate):
    """Holds both inequalities of docs/staleness.md against every event."""

    def restore(self, num_trained: int, loaded_version: int, outstanding: Sequence[tuple[int, int]]) -> None:
        super().restore(num_trained, loaded_version, outstanding)
        self._check()

    def admit(self, loaded_version: int) -> int:
        deadline = super().admit(loaded_version)
        assert self.num_trained + self.num_outstanding <= (deadline + 1) * self.problems_per_step  # (A)
        self._check()
        return deadline

    def release(self, deadline: int) -> None:
        super().release(deadline)
        self._check()

    def train(self, deadline: int) -> None:
        super().train(deadline)
        self._check()

    def _check(self) -> None:
        """(S), between two steps."""
        version, amid = divmod(self.num_trained, self.problems_per_step)
        due = 0
        for deadline in sorted(self._outstanding) if not amid else []:
            due += self._outstanding[deadline]
            assert due <= (deadline - version + 1) * self.problems_per_step


class World:
    """A controller with null engine and trainer on virtual time."""

    def __init__(
        self,
        rollout: Rollout,
        steps: int,
        length_of: Callable[[int], int] = lambda seed: 1 + seed % 7,
        step_seconds: float = 5.0,
        swap_seconds: float = 0.5,
        score: Callable[[Problem], float] = lambda _: 1.0,
        deadlines: Deadlines = PATIENT,
        checkpoint_every: int = 0,
        seconds_of: Callable[[int], float] = lambda _: 1.0,
        replicas: int = 1,
        env: Env = single_turn,
        keep: Filter = keep_all,
        crash_at: float | None = None,
        stop_at: float | None = None,
        lags: np.ndarray | None = None,
        until: int | None = None,
        tokens: int | None = None,
        interrupt: bool = True,
        restored: ControllerState | None = None,
        serves_newest: bool = False,
        pace: SwapPace = AT_ONCE,
    ) -> None:
        self.pace, self.stop_at = pace, stop_at
        self.keep, self.crash_at, self.lags, self.until = keep, crash_at, lags, until or steps
        self.tokens, self.interrupt = tokens, interrupt
        self.seconds_of, self.replicas, self.env = seconds_of, replicas, env
        self.rollout, self.steps, self.deadlines = rollout, steps, deadlines
        self.length_of, self.swap_seconds, self.score = length_of, swap_seconds, score
        self.serves_newest = serves_newest  # after a resume on the wall clock
        self.restored, self.first = restored, restored.version if restored else 0
        self.trainer, self.observer = NullTrainer(step_seconds, self.first), NullObserver()
        self.checkpoints = NullCheckpoints(checkpoint_every, steps)
        self.make_router = self._fixed_engines
        self.beside: Callable[[], Coroutine[Any, Any, None]] | None = None  # goes on until the controller is done

    def run(self) -> "World":
        state, start = self.restored, 0.0
        if self.crash_at is not None:
            with contextlib.suppress(TimeoutError):
                clock.run(lambda: asyncio.wait_for(self._main(None), self.crash_at), virtual=True)
            if self.checkpoints.states:
                start, data = self.checkpoints.states[max(self.checkpoints.states)]
                state = msgpack_arrays.decoder(ControllerState).decode(data)
            self.trainer.version = state.version if state else 0
            del self.trainer.batches[self.trainer.version :]
        clock.run(lambda: self._main(state), virtual=True, start=start)
        return self

    def run_until_stopped(self) -> tuple[float, ControllerState] | None:
        """Run until `stop_at`; return when, and with what state, it goes on; None: it has not begun to train."""
        clock.run(lambda: self._main(None), virtual=True)
        if not self.checkpoints.states:
            return None
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
        self.episodes = Episodes(self.engine, NullCodec(), rewards, self.env, self.rollout, seed=0, max_length=100_000)
        problems = ProblemOrder([Problem(str(i)) for i in range(50)], seed=0)
        admission = self._admission()
        return Controller(
            Segment(
                rollout=self.rollout,
                deadlines=self.deadlines,
                steps=self.steps,
                tokens=self.tokens,
                until=self.until,
                engine=self.engine,
                trainer=self.trainer,
                admission=admission,
                problems=problems,
                groups=self.episodes,
                gate_meter=self.episodes.gate_meter,
                tail=self.tail,
                pace=self.pace,
                drain=None if self.interrupt else self.episodes.drain,
                keep=self.keep,
                lease=NullLease(),
                observer=self.observer,
                checkpoints=self.checkpoints,
                restored=restored,
            )
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
        return CheckedGate(self.rollout.problems_per_step, self.rollout.max_age)

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


@given(schedules)
@examples(10)
def test_on_any_schedule_no_trained_token_is_older_than_the_bound_and_every_group_is_accounted_for(
    s: dict[str, Any],
) -> None:
    p = s["problems"]
    rollout = rules(s)
    world = scheduled(
        s,
        rollout,
        6,
        keep=lambda problem, _: not s["reject_one_in"] or int(str(problem.prompt)) % s["reject_one_in"] != 0,
        checkpoint_every=s["checkpoint_every"],
        crash_at=s["crash_at"],
    ).run()
    ledger = world.controller.ledger
    trained = [group.group_id for batch in world.trainer.batches for group in batch.groups]
    assert max(world.ages()) <= rollout.max_age
    assert max(world.trainer.versions_ahead) <= rollout.versions_ahead
    assert [len(batch.groups) for batch in world.trainer.batches] == [p] * 6
    assert len(set(trained)) == len(trained) == ledger.trained
    assert ledger.admitted == ledger.trained + ledger.lost.total()
    assert bool(ledger.lost[FAILED] + ledger.lost[FAILED_REQUEUED]) <= bool(s["fail_one_in"])
    assert bool(ledger.lost[REJECTED]) <= bool(s["reject_one_in"])
    if rollout.late == "wait":
        assert ledger.lost.keys() <= {FAILED, FAILED_REQUEUED, REJECTED}
        trained_problems = [group.problem.id for batch in world.trainer.batches for group in batch.groups]
        if not ledger.lost:  # nothing but the order decides: the first of it, each once, through any crash
            order = ProblemOrder([Problem(str(i)) for i in range(50)], seed=0)
            assert sorted(trained_problems) == sorted(next(order).id for _ in range(6 * p))


@given(schedules, st.floats(0.0, 400.0))
@examples(10)
def test_on_any_schedule_a_stopped_run_has_saved_its_newest_version_and_goes_on_without_a_loss(
    s: dict[str, Any], stop_at: float
) -> None:
    rollout = rules(s)
    every = s["checkpoint_every"]
    stopped = scheduled(s, rollout, 6, checkpoint_every=every, stop_at=stop_at)
    saved = stopped.run_until_stopped()
    version = stopped.controller.version
    steps_begun = len(stopped.trainer.batches)
    assert steps_begun == version == max(stopped.checkpoints.states, default=0)
    if saved is None or version == 6:
        return
    _, state = saved
    resumed = scheduled(s, rollout, 6, checkpoint_every=every, restored=state).run()
    batches = [*stopped.trainer.batches, *resumed.trainer.batches]
    trained = [group.group_id for batch in batches for group in batch.groups]
    ledger = resumed.controller.ledger
    assert [batch.version for batch in batches] == list(range(6))
    assert len(set(trained)) == len(trained) == ledger.trained
    assert ledger.admitted == ledger.trained + ledger.lost.total()
    assert max([*stopped.ages(), *resumed.ages()]) <= rollout.max_age


def test_a_filter_decides_what_is_trained_and_its_groups_are_replaced() -> None:
    def even(problem: Problem, trajectories: Sequence[Trajectory]) -> bool:
        assert all(t.reward == 1.0 for t in trajectories)
        return int(str(problem.prompt)) % 2 == 0

    world = World(Rollout(problems_per_step=3, group_size=2, staleness=1), 5, keep=even).run()
    assert {int(str(g.problem.prompt)) % 2 for b in world.trainer.batches for g in b.groups} == {0}
    assert world.controller.ledger.lost[REJECTED] == len(world.observer.lost) > 0


def test_an_env_may_reject_its_group() -> None:
    async def env(problem: Problem, session: Session) -> None:
        await single_turn(problem, session)
        if int(str(problem.prompt)) % 2:
            raise Rejected("odd")

    world = World(Rollout(problems_per_step=3, group_size=2, max_failed_share=0), 4, env=env).run()
    assert world.controller.ledger.lost.keys() == {REJECTED}


def test_rejects_end_the_run_with_a_diagnosis() -> None:
    rollout = Rollout(problems_per_step=2, group_size=2, reject_window=5, filter="mine:never")
    with pytest.raises(ExceptionGroup) as caught:
        World(rollout, 4, keep=lambda *_: False).run()
    cause = next(leaves(caught.value))
    assert "5 of 5 problems in order of admission were rejected" in str(cause)
    assert "rollout.max_rejected_share 0.99 allows; the first, problem" in str(cause)
    assert "by mine:never, had the rewards [1.0]" in str(cause)


def test_an_episode_goes_on_in_mid_turn_and_its_env_hears_the_same_again() -> None:
    heard: list[list[Completion]] = []

    async def two_turns(problem: Problem, session: Session) -> None:
        heard.append([])
        for _ in range(2):
            heard[-1].append(await session.generate(limit=30))
            session.extend("!")

    rollout = Rollout(problems_per_step=1, group_size=2, staleness=3, max_new_tokens=80)
    settings = {"length_of": lambda seed: 20 + seed % 7, "env": two_turns, "checkpoint_every": 1}
    whole = World(rollout, 3, **settings).run()  # type: ignore[arg-type]
    heard.clear()
    resumed = World(rollout, 3, **settings, crash_at=60.0).run()  # type: ignore[arg-type]
    assert resumed.checkpoints.states.keys() == {1, 2, 3}
    for batch, again in zip(whole.trainer.batches, resumed.trainer.batches, strict=True):
        for group, copy in zip(batch.groups, again.groups, strict=True):
            for t, u in zip(group.trajectories, copy.trajectories, strict=True):
                assert t.token_ids.tolist() == u.token_ids.tolist()


def test_a_resumed_env_that_goes_another_way_generates_anew_from_there() -> None:
    calls = itertools.count()

    async def moody(problem: Problem, session: Session) -> None:
        session.extend("x" * next(calls))
        await session.generate()

    rollout = Rollout(problems_per_step=1, group_size=2, staleness=3, max_new_tokens=80, max_failed_share=0)
    world = World(rollout, 8, lambda seed: 30 + seed % 70, env=moody, checkpoint_every=1, crash_at=90.0).run()
    assert world.episodes.num_diverged > 0
    assert not world.controller.ledger.lost
    trained = [group.group_id for batch in world.trainer.batches for group in batch.groups]
    assert sorted(trained) == list(range(8))
    assert max(world.ages()) <= 3


@pytest.mark.parametrize("late", ["wait", "drop"])
def test_a_restored_controller_is_in_the_state_it_was_restored_from(late: Literal["wait", "drop"]) -> None:
    """Whatever a crash interrupts: the state is that of a schedule in which everything happens."""
    rollout = Rollout(problems_per_step=2, group_size=2, staleness=3, late=late, **NEVER_ENDED_BY_FAILURES)
    failures = WindowState(failed=((3, "ValueError: no"),), rejected=((1, "a"), (2, "b")))
    artificial = {
        "set_aside": (),
        "is_long_round": False,
        "restarted_tokens": 5,
        "requeued": (Attempt(Problem("again"), 3, 1),),
        "failures": failures,
    }
    world = World(
        rollout,
        12,
        heavy_tailed(one_in=4, factor=60),
        step_seconds=20.0,
        checkpoint_every=1,
        env=failing(5),
        keep=lambda problem, _: int(str(problem.prompt)) % 3 != 0,
    ).run()
    states = [msgpack_arrays.decoder(ControllerState).decode(data) for _, data in world.checkpoints.states.values()]
    for field in ControllerState.__struct_fields__:
        if field not in artificial:
            assert any(getattr(state, field) for state in states), f"{field} is never anything"
    for state in states:
        filled = msgspec.structs.replace(state, **artificial)
        again = World(rollout, 12, restored=filled)
        assert msgpack_arrays.encoder().encode(again.state()) == msgpack_arrays.encoder().encode(filled)


def test_without_a_bound_a_straggler_delays_no_step_and_is_trained_however_old_it_is() -> None:
    one_straggler = heavy_tailed(one_in=20, factor=500)
    bounded = World(Rollout(problems_per_step=2, group_size=2, staleness=3), 30, one_straggler).run()
    free = World(Rollout(problems_per_step=2, group_size=2, staleness=None, max_groups=6), 30, one_straggler).run()
    assert max(bounded.ages()) <= 3 < max(free.ages())
    assert max(free.observer.waits) < max(bounded.observer.waits)


def test_without_a_bound_the_mean_age_of_a_group_follows_from_the_cap() -> None:
    """The formula that docs/staleness.md gives, where training limits the speed."""
    for versions in (2, 4, 8):
        rollout = Rollout(problems_per_step=4, group_size=2, staleness=None, max_groups=4 * (versions - 1))
        batches = World(rollout, 80, step_seconds=60.0).run().trainer.batches[20:]
        ages = [batch.version - group.dispatch_version for batch in batches for group in batch.groups]
        assert sum(ages) / len(ages) == pytest.approx(versions, abs=0.2)


@given(schedules, st.integers(1, 300))
@examples(2)
def test_on_any_schedule_a_run_ends_with_the_first_step_that_reaches_its_tokens(s: dict[str, Any], tokens: int) -> None:
    cuts = {"checkpoint_every": s["checkpoint_every"], "crash_at": s["crash_at"]}
    world = scheduled(s, rules(s), 6, tokens=tokens, **cuts).run()
    sums = [sum(t.num_sampled for g in batch.groups for t in g.trajectories) for batch in world.trainer.batches]
    totals = list(itertools.accumulate(sums))
    last = next((step for step, total in enumerate(totals) if total >= tokens), 5)
    assert len(totals) == last + 1 == world.controller.version == world.engine.loaded_version
    assert max(world.checkpoints.states) == world.controller.version
    state = msgpack_arrays.decoder(ControllerState).decode(world.checkpoints.states[last + 1][1])
    longer = scheduled(s, rules(s), 6, tokens=tokens + 50, restored=state).run()
    assert longer.controller.version == 6 or longer.controller.state().tokens_trained >= tokens + 50


@given(schedules, st.integers(1, 7), st.sampled_from([0.0, 3.0, 1e9]))
@examples(5)
def test_on_any_schedule_and_at_any_pace_of_swaps_the_bound_holds_and_every_step_is_trained(
    s: dict[str, Any], every: int, min_seconds: float
) -> None:
    rollout = rules(s)
    cuts = {"checkpoint_every": s["checkpoint_every"], "crash_at": s["crash_at"]}
    world = scheduled(s, rollout, 6, pace=SwapPace(every, min_seconds), **cuts).run()
    assert max(world.ages()) <= rollout.max_age
    assert max(world.trainer.versions_ahead) <= rollout.versions_ahead
    assert [len(batch.groups) for batch in world.trainer.batches] == [s["problems"]] * 6
    assert world.engine.loaded_version == 6


@pytest.mark.parametrize("staleness", [6, None])
def test_engines_load_every_third_version_where_nothing_waits_for_one(staleness: int | None) -> None:
    rollout = Rollout(problems_per_step=2, group_size=2, staleness=staleness, max_groups=4)
    world = World(rollout, 13, step_seconds=30.0, pace=SwapPace(every=3)).run()
    assert [swap.version for swap in world.observer.swaps] == [3, 6, 9, 12, 13]


def test_engines_load_no_version_before_the_seconds_between_two_loads_have_passed() -> None:
    rollout = Rollout(problems_per_step=2, group_size=2, staleness=9, max_groups=4)
    world = World(rollout, 20, step_seconds=30.0, swap_seconds=0.0, pace=SwapPace(min_seconds=100.0)).run()
    *gaps, _ = [later - earlier for earlier, later in itertools.pairwise(world.observer.swap_times)]  # the run's end
    assert min(gaps) >= 100.0
    assert max(gaps) <= 130.0  # then at once: the next step at the latest


@pytest.mark.parametrize("min_seconds", [10.8, 12.2, 14.3])
def test_a_load_is_due_when_its_seconds_have_passed_however_sums_of_times_are_rounded(min_seconds: float) -> None:
    rollout = Rollout(problems_per_step=2, group_size=2, staleness=9, max_groups=4)
    world = World(rollout, 20, step_seconds=3.3, swap_seconds=0.1, pace=SwapPace(min_seconds=min_seconds)).run()
    *gaps, _ = [later - earlier for earlier, later in itertools.pairwise(world.observer.swap_times)]  # the run's end
    assert gaps == pytest.approx([min_seconds + 0.1] * len(gaps))


def test_a_load_is_not_put_off_once_no_group_may_start_without_it() -> None:
    rollout = Rollout(problems_per_step=2, group_size=2, staleness=1)
    slow_trainer = World(rollout, 8, step_seconds=60.0, pace=SwapPace(min_seconds=1e6)).run()
    at_once = World(rollout, 8, step_seconds=60.0).run()
    assert slow_trainer.seconds == at_once.seconds


def test_staleness_zero_is_synchronous() -> None:
    world = World(Rollout(problems_per_step=4, group_size=2, staleness=0), steps=5).run()
    assert set(world.ages()) == {0}
    assert min(world.observer.waits) > 0


@given(schedules)
@examples(4)
def test_with_tail_batching_every_step_is_fresh_and_what_is_set_aside_is_tried_again(s: dict[str, Any]) -> None:
    rollout = Rollout(
        problems_per_step=s["problems"],
        group_size=2,
        staleness=0,
        tail_batching=TailBatching(oversample=1.5),
        **NEVER_ENDED_BY_FAILURES,
    )
    cuts = {"checkpoint_every": s["checkpoint_every"], "crash_at": s["crash_at"]}
    world = scheduled(s, rollout, 12, **cuts).run()
    ledger = world.controller.ledger
    batches = world.trainer.batches
    assert set(world.ages()) == {0}
    assert [len(batch.groups) for batch in batches] == [s["problems"]] * 12
    assert ledger.admitted == ledger.trained + ledger.lost.total()
    assert world.tail is not None
    trained = Counter(group.problem.id for batch in batches for group in batch.groups)
    waiting = Counter(attempt.problem.id for attempt in world.tail.set_aside)
    if not s["fail_one_in"]:  # no problem is lost: each is trained or waits, and none twice in an epoch
        assert (trained + waiting).total() == world.controller.state().num_problems
        assert ledger.lost.keys() <= {SET_ASIDE}


def test_tail_batching_trains_on_stragglers_together_and_waits_for_them_seldom() -> None:
    straggling = heavy_tailed(one_in=20, factor=100)
    plain = Rollout(problems_per_step=4, group_size=2, staleness=0)
    batched = Rollout(problems_per_step=4, group_size=2, staleness=0, tail_batching=TailBatching(oversample=1.5))
    waiting, tail = World(plain, 40, straggling).run(), World(batched, 40, straggling).run()
    assert tail.seconds < 0.8 * waiting.seconds
    assert tail.controller.ledger.lost[SET_ASIDE] > 0
    longest = [max(len(t.token_ids) for g in b.groups for t in g.trajectories) for b in tail.trainer.batches]
    assert max(longest) > 100  # and they are trained in the end


def test_with_staleness_generation_runs_while_the_trainer_trains() -> None:
    synchronous = World(Rollout(problems_per_step=4, group_size=2, staleness=0), steps=10).run()
    asynchronous = World(Rollout(problems_per_step=4, group_size=2, staleness=2), steps=10).run()
    assert asynchronous.seconds < 0.75 * synchronous.seconds
    assert max(asynchronous.ages()) >= 1


def test_a_straggler_is_waited_for_rather_than_trained_too_old() -> None:
    one_straggler = heavy_tailed(one_in=20, factor=500)
    world = World(Rollout(problems_per_step=2, group_size=2, staleness=1), 12, one_straggler).run()
    longest = max(len(t.token_ids) for b in world.trainer.batches for g in b.groups for t in g.trajectories)
    assert longest > 500
    assert max(world.ages()) <= 1


def test_late_drop_abandons_the_straggler_and_requeues_its_problem() -> None:
    straggling = heavy_tailed(one_in=12, factor=500)
    rollout = Rollout(problems_per_step=2, group_size=2, staleness=1, late="drop")
    world = World(rollout, 12, straggling).run()
    waiting = World(Rollout(problems_per_step=2, group_size=2, staleness=1), 12, straggling).run()
    assert world.controller.ledger.lost[LATE_REQUEUED] > 0
    assert world.seconds < waiting.seconds
    assert max(world.ages()) <= 1


def test_a_trajectory_may_span_versions_and_says_so() -> None:
    world = World(Rollout(problems_per_step=2, group_size=2, staleness=3), 10, lambda seed: 5 + seed % 40).run()
    versions = [
        set(t.policy_versions[t.loss_mask]) for b in world.trainer.batches for g in b.groups for t in g.trajectories
    ]
    assert any(len(v) > 1 for v in versions)


@given(schedules)
@examples(3)
def test_without_interruptions_no_trajectory_spans_versions_on_any_schedule(s: dict[str, Any]) -> None:
    async def two_turns(problem: Problem, session: Session) -> None:
        for _ in range(2):
            await session.generate(limit=4)
            session.extend("!")

    world = scheduled(s, rules(s), 6, interrupt=False, checkpoint_every=s["checkpoint_every"], crash_at=s["crash_at"])
    world.env = two_turns
    world.run()
    assert max(world.ages()) <= world.rollout.max_age
    for batch in world.trainer.batches:
        for group in batch.groups:
            for t in group.trajectories:
                assert len(set(t.policy_versions[t.loss_mask].tolist())) == 1


def test_a_drain_past_its_deadline_names_what_it_waits_for() -> None:
    rollout = Rollout(problems_per_step=1, group_size=2, staleness=3)
    straggler = heavy_tailed(one_in=3, factor=3000)
    hurried = Deadlines(step=100.0, swap=5.0)
    with pytest.raises(ExceptionGroup) as caught:
        World(rollout, 9, straggler, step_seconds=1.0, deadlines=hurried, interrupt=False).run()
    (cause,) = leaves(caught.value)
    assert re.search(r"publisher waits \d+\.\d s for \d episodes to end before weights are loaded", str(cause))


def test_one_failed_reward_fails_its_group_and_gives_its_number_back() -> None:
    failed: list[str] = []

    def score(problem: Problem) -> float:
        if problem.prompt == "13" and not failed:
            failed.append(problem.id)
            raise ValueError("no opinion")
        return 1.0

    world = World(Rollout(problems_per_step=5, group_size=2, staleness=1), 10, score=score).run()
    assert world.controller.ledger.lost == Counter({FAILED_REQUEUED: 1})
    assert failed[0] in {group.problem.id for batch in world.trainer.batches for group in batch.groups}


def test_a_run_whose_every_episode_fails_ends_soon_and_names_the_first_cause() -> None:
    heard = itertools.count()

    def score(problem: Problem) -> float:
        raise ValueError(f"never any opinion, the {next(heard)}th time")

    world = World(Rollout(problems_per_step=2, group_size=2, staleness=2), 4, score=score)
    with pytest.raises(ExceptionGroup) as caught:
        world.run()
    (cause,) = leaves(caught.value)
    assert isinstance(cause, RunError)
    assert "33 of 64 problems in order of admission failed" in str(cause)
    first = min((group for group, _ in world.observer.lost), key=lambda group: group.group_id)
    assert f"the first, problem {first.problem.id}: ValueError: never any opinion" in str(cause)
    assert world.controller.ledger.admitted <= 3 * 33 + 6


@given(st.integers(0, 10_000))
@examples(0.2)
def test_a_run_of_which_one_episode_in_a_hundred_raises_finishes(seed: int) -> None:
    """Failures are a hundred times faster than successes, and so outrun them."""
    draw = random.Random(seed)

    async def env(problem: Problem, session: Session) -> None:
        if draw.random() < 0.01:
            await asyncio.sleep(0.1)
            raise ValueError("this episode fails")
        await single_turn(problem, session)

    rollout = Rollout(problems_per_step=32, group_size=8, staleness=4)
    world = World(rollout, 3, lambda seed: 5 + seed % 7, env=env).run()
    ledger = world.controller.ledger
    assert len(world.trainer.batches) == 3
    assert ledger.lost[FAILED_REQUEUED] > 0
    assert ledger.admitted == ledger.trained + ledger.lost.total() + ledger.in_flight


def test_a_failed_problem_is_tried_again_and_then_given_up() -> None:
    def score(problem: Problem) -> float:
        if problem.prompt == "13":
            raise ValueError("no opinion")
        return 1.0

    world = World(Rollout(problems_per_step=5, group_size=2, staleness=1), 9, score=score).run()
    ledger = world.controller.ledger
    assert {group.problem.prompt for group, _ in world.observer.lost} == {"13"}
    assert [fate for _, fate in world.observer.lost] == [FAILED_REQUEUED, FAILED_REQUEUED, FAILED]
    assert ledger.lost == Counter({FAILED_REQUEUED: 2, FAILED: 1})
    assert len({group.problem.id for batch in world.trainer.batches for group in batch.groups}) == 45


def test_a_wait_past_its_deadline_names_who_waits_for_what_and_counts_what_is_there_by_then() -> None:
    hurried = Deadlines(step=20.0, swap=5.0)
    world = World(Rollout(problems_per_step=2, group_size=2), 2, lambda _: 10_000, deadlines=hurried)
    with pytest.raises(ExceptionGroup) as caught:
        world.run()
    (cause,) = leaves(caught.value)
    assert "trainer waited 20 s for 2 groups for step 0; 4 groups running, 0 finished" in str(cause)


def test_the_schedule_repeats_exactly() -> None:
    def trained() -> list[list[int]]:
        world = World(Rollout(problems_per_step=3, group_size=2, staleness=2), 8, heavy_tailed(7, 10)).run()
        return [[group.group_id for group in batch.groups] for batch in world.trainer.batches]

    assert trained() == trained()


def test_the_last_version_is_always_saved_and_others_as_often_as_asked() -> None:
    rollout = Rollout(problems_per_step=2, group_size=2)
    assert list(World(rollout, 5).run().checkpoints.states) == [5]
    assert list(World(rollout, 5, checkpoint_every=2).run().checkpoints.states) == [2, 4, 5]
