"""Groups that are rejected or fail are counted, replaced or tried again, and end the run if there are too many."""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.config.recipe import Deadlines, Rollout
from arl.errors import RunError, leaves
from arl.rollout import failure_window
from arl.rollout.failure_window import FailureWindow
from arl.types import FAILED, FAILED_REQUEUED, Problem
from tests.rollout.controller_world import World


@given(
    st.lists(st.integers(0, 60), max_size=40, unique=True), st.integers(1, 20), st.sampled_from([0.0, 0.1, 0.5, 0.99])
)
def test_a_run_is_refused_if_and_only_if_some_window_has_more_than_the_share(
    failed: list[int], size: int, share: float
) -> None:
    """Whoever ends first."""
    window = FailureWindow(size, share)
    verdicts = [window.mark(number, "cause") for number in failed]
    most = max(sum(first <= number < first + size for number in failed) for first in range(-size, 61))
    assert any(verdict is not None for verdict in verdicts) == (most > size * share + 1e-9)


def test_rejects_end_the_run_with_a_diagnosis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_window, "REJECTED_OF", 5)
    rollout = Rollout(problems_per_step=2, group_size=2, filter="mine:never")
    with pytest.raises(ExceptionGroup) as caught:
        World(rollout, 4, keep=lambda *_: False).run()
    cause = next(leaves(caught.value))
    assert "5 of 5 problems in order of admission were rejected" in str(cause)
    assert "rollout.max_rejected_share 0.99 allows; the first, problem" in str(cause)
    assert "by mine:never, had the rewards [1.0]" in str(cause)


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
