"""The verdict over failed problems depends on which of them fail, and never on who ends first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.config.recipe import Rollout
from arl.errors import RunError
from arl.rollout import failure_window
from arl.rollout.failure_window import FailureLimits, FailureWindow
from arl.rollout.problem_queue import Attempt
from arl.types import Problem

numbers = st.lists(st.integers(0, 60), max_size=40, unique=True)
sizes = st.integers(1, 20)
shares = st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.99])


def is_refused(window: FailureWindow, order: list[int]) -> bool:
    """Whether any of the failures, in this order of ending, ends the run."""
    verdicts = [window.mark(number, "cause") for number in order]
    return any(verdict is not None for verdict in verdicts)


@given(numbers, sizes, shares)
def test_a_run_is_refused_if_and_only_if_some_window_has_more_than_the_share(
    failed: list[int], size: int, share: float
) -> None:
    counts = [sum(first <= number < first + size for number in failed) for first in range(-size, 61)]
    assert is_refused(FailureWindow(size, share), failed) == (max(counts) > size * share + 1e-9)


@pytest.fixture
def short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_window, "FAILED_OF", 4)
    monkeypatch.setattr(failure_window, "REJECTED_OF", 2)


@pytest.mark.usefixtures("short_windows")
def test_a_restored_window_goes_on_counting() -> None:
    rollout = Rollout(max_failed_share=0.25, max_rejected_share=0.5)
    limits, restored = FailureLimits(rollout), FailureLimits(rollout)
    limits.count_failure(Attempt(Problem("a"), 0), ValueError("first"))
    limits.count_reject(Attempt(Problem("b"), 1), [1.0, 1.0], None)
    restored.restore(limits.state())
    assert restored.state() == limits.state()
    with pytest.raises(RunError, match="ValueError: first"):
        restored.count_failure(Attempt(Problem("c"), 3), ValueError("second"))
    with pytest.raises(RunError, match=r"had the rewards \[1.0\]"):
        restored.count_reject(Attempt(Problem("d"), 2), [0.0], None)
