"""Damaged input is used, or refused with the documented error: at once, in a short message, without a traceback."""

from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.edges import EDGES
from tests.fuzz.trials import done

LONGEST_SECONDS = 30.0  # that a trial may take, beside other tests; alone it has two: see tests.fuzz.__main__
SLOW_TRIALS = 200  # of each edge, by CI's slow tests


@pytest.mark.parametrize("name", sorted(EDGES))
def test_damaged_input_is_used_or_refused(name: str, tmp_path: Path) -> None:
    _try(name, EDGES[name].trials, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(name for name, edge in EDGES.items() if edge.trials < SLOW_TRIALS))
def test_hundreds_of_damaged_inputs_are_used_or_refused(name: str, tmp_path: Path) -> None:
    _try(name, SLOW_TRIALS, tmp_path)


def _try(name: str, trials: int, directory: Path) -> None:
    edge = EDGES[name]
    with edge.prepare(directory) as draw:

        @settings(max_examples=trials, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        @given(st.integers(0, 2**64 - 1))
        def try_once(seed: int) -> None:
            done(draw(Random(seed)), edge.refuses, LONGEST_SECONDS)

        try_once()
