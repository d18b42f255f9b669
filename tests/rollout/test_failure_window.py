"""The verdict over failed problems depends on which of them fail, and never on who ends first."""

from hypothesis import given
from hypothesis import strategies as st

from arl.rollout.failure_window import FailureWindow

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
