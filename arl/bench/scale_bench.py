"""Measure what one controller carries: `arl bench controller --nodes 64`. Torch-free.

2 engines ─► 4 ─► 8 ─► … each a rung (arl.bench.scale_rung), up to the first that one controller does not carry
one node with other requests, other increments, a kept cache ─► slope: CPU an event, a token, a request
largest rung that was carried ─► extrapolation: cores and memory for all nodes
"""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from arl.bench.null_cluster import ClusterShape
from arl.bench.scale_rung import REQUESTS_PER_ENGINE, Rung, measure_rung
from arl.metrics.console import stderr_display

ENGINES_PER_NODE = 8
FEWEST_ENGINES = 2  # of the first rung


class Ladder(Struct, frozen=True):
    """Say what is measured: ever more engines, until the controller cannot keep up or there are enough."""

    nodes: int
    processes: int  # of null engines
    rate: float  # tokens a second of one request
    interval: int  # tokens of an increment
    longest: int  # tokens of a request; uniform from 1
    warm_seconds: float
    window_seconds: float

    @property
    def engines(self) -> int:
        """Return how many engines so many nodes have."""
        return self.nodes * ENGINES_PER_NODE

    def shape(self, engines: int) -> ClusterShape:
        """Return the null engines of one rung."""
        return ClusterShape(
            engines=engines,
            processes=min(self.processes, engines),
            rate=self.rate,
            interval=self.interval,
            longest=self.longest,
        )


def bench_scale(ladder: Ladder) -> dict[str, Any]:
    """Measure each rung, and then one node with other requests, other increments and a kept cache."""
    one_node = ladder.shape(ENGINES_PER_NODE)
    variants = {
        "requests a quarter as long": msgspec.structs.replace(one_node, longest=max(ladder.longest // 4, 1)),
        "increments four times as long": msgspec.structs.replace(one_node, interval=4 * ladder.interval),
        "requests 16 times as fast": msgspec.structs.replace(one_node, rate=16 * ladder.rate),
        "kv_policy keep": msgspec.structs.replace(one_node, kv_policy="keep"),
    }
    with stderr_display() as display:

        def measure(shape: ClusterShape) -> Rung:
            display.note(f"{shape.engines} engines: up to {shape.longest} tokens, {shape.interval} an increment")
            rung = _in_new_process(shape, ladder.warm_seconds, ladder.window_seconds)
            display.note(f"{rung.achieved:.1%} of the asked rate, {rung.cpu_share:.0%} of a core")
            return rung

        rungs = _climb(ladder, measure)
        varied = {name: measure(shape) for name, shape in variants.items()}
    return {
        "asked": msgspec.structs.asdict(ladder) | {"requests_per_engine": REQUESTS_PER_ENGINE},
        "ladder": [rung.row() for rung in rungs],
        "one_node_with": {name: rung.row() for name, rung in varied.items()},
        "slope": slope([*rungs, *varied.values()]),
        "extrapolation": extrapolate(rungs, ladder),
    }


def _climb(ladder: Ladder, measure: Callable[[ClusterShape], Rung]) -> list[Rung]:
    """Double the engines up to the first rung that is not carried."""
    rungs: list[Rung] = []
    engines = FEWEST_ENGINES
    while engines <= ladder.engines and (not rungs or rungs[-1].is_carried):
        rungs.append(measure(ladder.shape(engines)))
        engines *= 2
    return rungs


def slope(rungs: list[Rung]) -> dict[str, Any]:
    """Split the controller's CPU into that of events, tokens and requests, by least squares of relative errors.

    Longer increments separate events from tokens, shorter requests separate requests from both.
    """
    counts = np.array([[rung.events, rung.tokens, rung.requests] for rung in rungs], dtype=float)
    seconds = np.array([rung.cpu_seconds for rung in rungs])
    per, *_ = np.linalg.lstsq(counts / seconds[:, None], np.ones(len(rungs)), rcond=None)
    errors = np.abs(counts @ per / seconds - 1)
    return {
        "cpu_us_per_event": round(per[0] * 1e6, 2),
        "cpu_us_per_token": round(per[1] * 1e6, 3),
        "cpu_us_per_request": round(per[2] * 1e6, 1),
        "largest_relative_error": round(float(errors.max()), 3),
    }


def extrapolate(rungs: list[Rung], ladder: Ladder) -> dict[str, Any]:
    """Say what one core carries, from the CPU of the largest rung that was carried, and what all nodes would need."""
    carried = [rung for rung in rungs if rung.is_carried]
    basis = (carried or rungs)[-1]
    tokens_per_core = basis.tokens / basis.cpu_seconds
    wanted = ladder.engines * REQUESTS_PER_ENGINE * ladder.rate
    requests = ladder.engines * REQUESTS_PER_ENGINE
    return {
        "from_engines": basis.engines,
        "most_engines_carried": max((rung.engines for rung in carried), default=0),
        "tokens_per_cpu_s": round(tokens_per_core),
        "requests_per_core": round(tokens_per_core / ladder.rate),
        "engines": ladder.engines,
        "requests": requests,
        "tokens_per_s": round(wanted),
        "cores": round(wanted / tokens_per_core, 1),
        "resident_gib_by_tokens_held": _resident_gib(basis, requests),
    }


def _in_new_process(shape: ClusterShape, warm_seconds: float, window_seconds: float) -> Rung:
    """Measure in a fresh process, because memory that an earlier rung has freed would hide what this one takes."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(measure_rung, shape, warm_seconds, window_seconds).result()


def _resident_gib(basis: Rung, requests: int) -> dict[int, float] | None:
    """Return the memory of so many open requests, by the tokens that each of them holds in the mean."""
    if basis.memory is None:
        return None
    per_request, per_token = basis.memory
    return {held: round(requests * (per_request + held * per_token) / 2**30, 1) for held in (512, 4096, 16_384)}
