"""A controller that ends, stops or dies has saved what the next one goes on from."""

import itertools
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.config.recipe import Rollout
from arl.data import msgpack_arrays
from arl.rollout.controller_state import ControllerState
from arl.rollout.env import Session
from arl.rollout.failure_window import WindowState
from arl.rollout.problem_queue import Attempt
from arl.types import Completion, Problem
from tests.examples import examples
from tests.rollout import controller_world
from tests.rollout.controller_world import World, failing, heavy_tailed, rules, scheduled, schedules


@given(schedules, st.floats(0.0, 400.0))
@examples(10)
def test_on_any_schedule_a_stopped_run_has_saved_its_newest_version_and_goes_on_without_a_loss(
    s: dict[str, Any], stop_at: float
) -> None:
    rollout = rules(s)
    every = s["checkpoint_every"]
    stopped = scheduled(s, rollout, 6, checkpoint_every=every, stop_at=stop_at)
    stopped.run()
    _, state = stopped.saved()
    version = stopped.controller.version
    steps_begun = len(stopped.trainer.batches)
    assert steps_begun == version == max(stopped.checkpoints.states, default=0)
    if state is None or version == 6:
        return
    resumed = scheduled(s, rollout, 6, checkpoint_every=every, restored=state).run()
    assert [batch.version for batch in resumed.trainer.batches] == list(range(version, 6))
    resumed.check_accounts(stopped)
    assert max([*stopped.ages(), *resumed.ages()]) <= rollout.max_age


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
    assert world.episodes.meter.num_diverged > 0
    assert not world.controller.ledger.lost
    trained = [group.group_id for batch in world.trainer.batches for group in batch.groups]
    assert sorted(trained) == list(range(8))
    assert max(world.ages()) <= 3


@pytest.mark.parametrize("late", ["wait", "drop"])
def test_a_restored_controller_is_in_the_state_it_was_restored_from(late: Literal["wait", "drop"]) -> None:
    """Whatever a crash interrupts: the state is that of a schedule in which everything happens."""
    rollout = Rollout(
        problems_per_step=2, group_size=2, staleness=3, late=late, **controller_world.NEVER_ENDED_BY_FAILURES
    )
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
