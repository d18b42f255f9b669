"""Only losses within a window count, whatever comes before and after them."""

from hypothesis import given
from hypothesis import strategies as st

from arl.engine.supervisor import RecentLosses

GAPS = st.lists(st.integers(1, 100), min_size=1, max_size=40)


@given(GAPS, st.integers(0, 4), st.integers(1, 300))
def test_more_losses_than_allowed_within_any_window_are_too_many_and_fewer_never(
    gaps: list[int], most: int, window: int
) -> None:
    losses = RecentLosses(most, float(window))
    times: list[int] = []
    for gap in gaps:
        times.append(gap + (times[-1] if times else 0))
        losses.add(float(times[-1]), had_served=True)
        within = [time for time in times if time > times[-1] - window]
        assert losses.are_too_many == (len(within) > most)
        if losses.are_too_many:
            return


@given(GAPS, st.integers(0, 10), st.integers(1, 300))
def test_servers_that_never_come_to_serve_are_too_many_at_last_however_long_their_starts_take(
    gaps: list[int], most: int, window: int
) -> None:
    losses = RecentLosses(most, float(window))
    at = 0.0
    losses.add(at, had_served=True)
    for number, gap in enumerate(gaps, start=2):
        at += gap
        losses.add(at, had_served=False)
        assert losses.are_too_many == (number > most)
