"""Of two deadlines in two processes, the one of the process that knows more comes first."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.config.run_section import Deadlines

ROOT = Path(__file__).parent.parent.parent
SECONDS = st.floats(0.01, 604_800.0)
DEADLINES = st.builds(Deadlines, **dict.fromkeys(Deadlines.model_fields, SECONDS))

Pair = tuple[Callable[[Deadlines], float], Callable[[Deadlines], float]]
PAIRS: dict[str, Pair] = {
    "a rank gives up a broadcast, then an engine its command": (lambda d: d.blocked_broadcast, lambda d: d.swap),
    "the controller gives up a step, then a rank a collective": (lambda d: d.step, lambda d: d.collective),
    "a rank gives up its last publication, then the controller the rank": (
        lambda d: d.shutdown,
        lambda d: d.ranks_stop,
    ),
    "a start and a step, then an evaluation": (lambda d: d.startup + d.step, lambda d: d.evaluation),
    "an engine is silent at a swap and replaced, then the swap": (
        lambda d: d.swap + d.startup,
        lambda d: d.swap_and_restart,
    ),
    "the controller gives up a guest, then the guest": (lambda d: d.startup + d.swap, lambda d: d.engine_joined),
    "the controller ends an engine, then who asked for it gives up": (
        lambda d: d.swap + d.shutdown,
        lambda d: d.engine_removed,
    ),
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
@given(deadlines=DEADLINES)
def test_the_inner_deadline_comes_first(pair: Pair, deadlines: Deadlines) -> None:
    inner, outer = pair
    assert inner(deadlines) < outer(deadlines)
