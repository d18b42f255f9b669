"""What the ladder says of many engines follows from what the rungs cost."""

import json
import math

from arl.bench import to_json
from arl.bench.scale_bench import Ladder, extrapolate, slope
from arl.bench.scale_rung import Rung

LADDER = Ladder(nodes=64, processes=2, rate=50.0, interval=16, longest=1024, warm_seconds=20, window_seconds=10)


def rung(engines: int, events: int, tokens: int, requests: int) -> Rung:
    """Cost 40 µs an event, 1 µs a token and 500 µs a request."""
    return Rung(
        engines=engines,
        longest=1024,
        interval=16,
        kv_policy="recompute",
        server_processes=2,
        open_requests=256.0 * engines,
        wall_seconds=10.0,
        cpu_seconds=events * 40e-6 + tokens * 1e-6 + requests * 500e-6,
        waited_seconds=0.0,
        server_cpu_seconds=1.0,
        events=events,
        tokens=tokens,
        requests=requests,
        asked_rate=50.0,
        lag_ms=(1.0, 5.0),
        memory=(20_000.0, 40.0),
        swap_pause_seconds=0.1,
        swap_cpu_seconds=0.1,
        swap_tokens=1000,
    )


def test_the_slope_finds_the_cost_of_an_event_a_token_and_a_request() -> None:
    rungs = [rung(2, 16_000, 256_000, 500), rung(8, 16_000, 1_024_000, 2000), rung(8, 64_000, 1_024_000, 8000)]
    found = slope(rungs)
    assert found["cpu_us_per_event"] == 40
    assert found["cpu_us_per_token"] == 1
    assert found["cpu_us_per_request"] == 500
    assert found["largest_relative_error"] == 0


def test_the_extrapolation_starts_from_the_largest_rung_that_was_carried() -> None:
    carried = rung(2, 16_000, 256_000, 500)
    overloaded = rung(4, 16_000, 256_000, 500)
    found = extrapolate([carried, overloaded], LADDER)
    assert not overloaded.is_carried
    assert found["most_engines_carried"] == 2
    assert math.isclose(found["cores"], 512 * 256 * 50 / (carried.tokens / carried.cpu_seconds), abs_tol=0.05)
    assert json.loads(to_json(found))["resident_gib_by_tokens_held"]["4096"] == round(
        131_072 * (20_000 + 4096 * 40) / 2**30, 1
    )
