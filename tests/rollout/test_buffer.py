"""What a step is given of the groups that have finished."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from arl.rollout.controller_state import GroupBuffer
from arl.types import Problem, TrajectoryGroup

ARRIVALS = st.lists(st.integers(0, 3), min_size=1, max_size=20).flatmap(
    lambda deadlines: st.permutations(list(enumerate(deadlines)))
)


@given(ARRIVALS, st.integers(1, 20))
def test_the_earliest_are_taken_first_come_first_and_stand_by_number(
    arrivals: list[tuple[int, int]], wanted: int
) -> None:
    buffer = GroupBuffer()
    for number, deadline in arrivals:
        buffer.add(TrajectoryGroup(number, Problem("p"), (), 0, 0.0, 0, 0.0), deadline)
    taken = [g.group_id for g in buffer.take(buffer.earliest(wanted))]
    due = dict(arrivals)
    assert taken == sorted(taken, key=lambda number: (due[number], number))
    by_arrival = sorted(arrivals, key=lambda arrival: arrival[1])[:wanted]
    assert set(taken) == {number for number, _ in by_arrival}
    assert Counter(due[g.group_id] for _, g in buffer) == Counter(due.values()) - Counter(due[n] for n in taken)
