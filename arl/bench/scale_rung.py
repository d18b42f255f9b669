"""Measure one controller on so many null engines, in this process. Torch-free.

    null engines in K processes ◄─ sockets ─► the real clients, router, episodes and controller, on one event loop
        fill      all requests open, memory grows by their tokens          ─► bytes a request, bytes a token
        window    the steady state                                         ─► CPU a token, loop lag, achieved rate
        swap      one publication reaches all engines                      ─► seconds and CPU of the pause

The requests ask for a fixed token rate, as GPUs would give them. A controller that cannot keep up reads late, the
sockets fill, and the null engines fall behind: `achieved` is the part of the asked rate that arrived.
"""

import asyncio
import resource
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from msgspec import Struct

from arl import clock
from arl.bench.controller_bench import resident_bytes
from arl.bench.null import NullCheckpoints, NullObserver
from arl.bench.null_answer import Totals
from arl.bench.null_cluster import PROMPT_IDS, ClusterShape, HeldTrainer, NullCluster, open_cluster, open_parts
from arl.clock import deadline, now
from arl.config.recipe import Recipe
from arl.launch.placement import Placement
from arl.metrics.console import stderr_display
from arl.rollout.controller import Controller
from arl.run.gc_pacing import rare_collections
from arl.run.preflight import Plan
from arl.run.resume import Origin
from arl.run.train import make_segment
from arl.run.world import Start
from arl.types import Problem, SwapReport

REQUESTS_PER_ENGINE = 256
CARRIED = 0.9  # of the asked token rate
GROUP_SIZE = 8
OPEN_SHARE = 9 / 16  # of a group's episodes: lengths are uniform, the mean is 1/2, that of the longest of eight 8/9
GROUPS_PER_STEP = 1 / 64  # of those in flight
LAG_SECONDS = 0.02  # between two looks at the event loop
SAMPLE_SECONDS = 0.5
SWAP_SECONDS = 240.0


class Rung(Struct, frozen=True):
    """Hold what was measured with so many engines. Times are those of the window, except those of `swap`."""

    engines: int
    longest: int  # tokens of a request; uniform from 1
    interval: int  # tokens of an increment
    kv_policy: str
    server_processes: int
    open_requests: float  # mean
    wall_seconds: float
    cpu_seconds: float  # of the controller's process
    waited_seconds: float  # of it, for a core that other processes had
    server_cpu_seconds: float  # of all null engines
    events: int
    tokens: int
    requests: int  # that ended
    asked_rate: float  # tokens a second of one request
    lag_ms: tuple[float, float]  # of the event loop: median and 99th percentile
    memory: tuple[float, float] | None  # bytes of an open request, and of a token that it holds; None: too few samples
    swap_pause_seconds: float
    swap_cpu_seconds: float  # until all requests are open again
    swap_tokens: int  # that the open requests held, prompts left out

    @property
    def cpu_share(self) -> float:
        return self.cpu_seconds / self.wall_seconds

    @property
    def achieved(self) -> float:
        """Return the part of the asked tokens that arrived, if all engines had all of their requests open."""
        asked = self.engines * REQUESTS_PER_ENGINE * self.asked_rate * self.wall_seconds
        return self.tokens / asked

    @property
    def is_carried(self) -> bool:
        """Return whether (nearly) all tokens that were asked for have arrived."""
        return self.achieved >= CARRIED

    def row(self) -> dict[str, Any]:
        """Return the rung as the document shows it, with its rates and ratios."""
        tokens = max(self.tokens, 1)
        return {
            "engines": self.engines,
            "longest": self.longest,
            "interval": self.interval,
            "kv_policy": self.kv_policy,
            "server_processes": self.server_processes,
            "open_requests": round(self.open_requests),
            "events_per_s": round(self.events / self.wall_seconds),
            "tokens_per_s": round(self.tokens / self.wall_seconds),
            "requests_per_s": round(self.requests / self.wall_seconds, 1),
            "achieved": round(self.achieved, 3),
            "cpu_share": round(self.cpu_share, 3),
            "waited_for_a_core_share": round(self.waited_seconds / self.wall_seconds, 3),
            "server_cpu_share": round(self.server_cpu_seconds / self.wall_seconds, 3),
            "cpu_s_per_1000_tokens": round(self.cpu_seconds / tokens * 1000, 5),
            "cpu_us_per_event": round(self.cpu_seconds / max(self.events, 1) * 1e6, 1),
            "cpu_ms_per_request": round(self.cpu_seconds / max(self.requests, 1) * 1e3, 3),
            "lag_ms_p50": round(self.lag_ms[0], 1),
            "lag_ms_p99": round(self.lag_ms[1], 1),
            "resident_bytes_per_request_and_token": None if self.memory is None else [round(b) for b in self.memory],
            "swap_pause_s": round(self.swap_pause_seconds, 3),
            "swap_cpu_s": round(self.swap_cpu_seconds, 3),
            "swap_tokens": self.swap_tokens,
        }


def measure_rung(shape: ClusterShape, warm_seconds: float, window_seconds: float) -> Rung:
    """Run a controller on null engines, and measure it from the first request to the end of a swap."""
    _raise_file_limit()
    with rare_collections():
        return clock.run(lambda: _measure(shape, warm_seconds, window_seconds))


def _raise_file_limit() -> None:
    """Allow as many sockets as the system does; a group has one to its engine, and commands have others."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _measure(shape: ClusterShape, warm_seconds: float, window_seconds: float) -> Rung:
    start = _make_start(shape)
    observer = _Swaps()
    async with open_cluster(shape) as cluster, open_parts(start, cluster, shape) as parts:
        assert isinstance(parts.trainer, HeldTrainer)
        controller = Controller(make_segment(start, parts, parts.steps, observer, NullCheckpoints()))
        meter = _Meter(shape, cluster, parts.trainer, observer)
        async with asyncio.TaskGroup() as tasks:
            lag = tasks.create_task(meter.watch_lag())
            run = tasks.create_task(controller.run())
            rung = await meter.measure(warm_seconds, window_seconds)
            run.cancel()
            lag.cancel()
    return rung


class _Swaps(NullObserver):
    """Keep the reports of swaps."""

    def __init__(self) -> None:
        self.reports: asyncio.Queue[SwapReport] = asyncio.Queue()

    def swapped(self, report: SwapReport) -> None:
        self.reports.put_nowait(report)


class _Sample(Struct, frozen=True):
    """Hold one look at the controller and its engines."""

    at: float
    cpu_seconds: float
    waited_seconds: float
    resident: int
    totals: Totals


class _Meter:
    """Looks at one controller while it runs."""

    def __init__(self, shape: ClusterShape, cluster: NullCluster, trainer: HeldTrainer, swaps: _Swaps) -> None:
        self._shape = shape
        self._cluster = cluster
        self._trainer = trainer
        self._swaps = swaps
        self._lags: list[float] = []

    async def watch_lag(self) -> None:
        """Record how much later than it asked this task is woken."""
        while True:
            due = now() + LAG_SECONDS
            await asyncio.sleep(LAG_SECONDS)
            self._lags.append(now() - due)

    async def measure(self, warm_seconds: float, window_seconds: float) -> Rung:
        """Measure fill, window and swap, one after the other."""
        filling = await self._sample_for(warm_seconds)
        self._lags.clear()
        window = [filling[-1], *await self._sample_for(window_seconds)]
        lags = np.array(self._lags)
        first = window[0]
        last = window[-1]
        wall = last.at - first.at
        num_open = float(np.mean([sample.totals.open for sample in window]))
        tokens = last.totals.tokens - first.totals.tokens
        pause, swap_cpu, swap_tokens = await self._swap(num_open)
        return Rung(
            engines=self._shape.engines,
            longest=self._shape.longest,
            interval=self._shape.interval,
            kv_policy=self._shape.kv_policy,
            server_processes=self._shape.processes,
            open_requests=num_open,
            wall_seconds=wall,
            cpu_seconds=last.cpu_seconds - first.cpu_seconds,
            waited_seconds=last.waited_seconds - first.waited_seconds,
            server_cpu_seconds=last.totals.cpu_seconds - first.totals.cpu_seconds,
            events=last.totals.events - first.totals.events,
            tokens=tokens,
            requests=last.totals.ended - first.totals.ended,
            asked_rate=self._shape.rate,
            lag_ms=(float(np.median(lags)) * 1e3, float(np.quantile(lags, 0.99)) * 1e3),
            memory=memory(filling, self._shape.longest / self._shape.rate),
            swap_pause_seconds=pause,
            swap_cpu_seconds=swap_cpu,
            swap_tokens=swap_tokens,
        )

    async def _sample_for(self, seconds: float) -> list[_Sample]:
        end = now() + seconds
        samples = [await self._sample()]
        while now() < end:
            await asyncio.sleep(SAMPLE_SECONDS)
            samples.append(await self._sample())
        return samples

    async def _sample(self) -> _Sample:
        totals = await self._cluster.totals()
        return _Sample(now(), process_time(), _waited_seconds(), resident_bytes(), totals)

    async def _swap(self, num_open: float) -> tuple[float, float, int]:
        """Have the engines load new weights. Return the longest pause, the CPU seconds, and the tokens held before."""
        cpu = process_time()
        async with deadline(SWAP_SECONDS, "bench", "a swap"):
            self._trainer.may_publish.set()
            report = await self._swaps.reports.get()
            while (await self._cluster.totals()).open < 0.95 * num_open:  # noqa: ASYNC110 (they are other processes)
                await asyncio.sleep(LAG_SECONDS)
        return report.pause_seconds, process_time() - cpu, report.recomputed_tokens


def _waited_seconds() -> float:
    """Return how long this process was ready to run, and had no core (Linux)."""
    _, waited, _ = Path("/proc/self/schedstat").read_text().split()
    return int(waited) / 1e9


def memory(samples: list[_Sample], longest_seconds: float) -> tuple[float, float] | None:
    """Return the bytes of an open request, and of each token that it holds, by least squares over the beginning.

    Only samples from before the first groups end count, so that all tokens that were sent are still held.
    None: there were too few of them, because the machine was slow or requests are short.
    """
    begin = samples[0]
    early = [one for one in samples[2:] if one.at - begin.at < longest_seconds / 3]
    if len(early) < 2:
        return None
    tokens = np.array([one.totals.tokens for one in early], dtype=float)
    resident = np.array([one.resident - begin.resident for one in early], dtype=float)
    per_token, at_zero = np.polyfit(tokens, resident, 1)
    return float(at_zero) / early[-1].totals.open, float(per_token)


def _make_start(shape: ClusterShape) -> Start:
    """Make a run with a fixed number of groups in flight, whose gate never closes and whose steps are small."""
    in_flight = round(shape.engines * REQUESTS_PER_ENGINE / GROUP_SIZE / OPEN_SHARE)
    per_step = max(round(in_flight * GROUPS_PER_STEP), 1)
    longest = len(PROMPT_IDS) + shape.longest
    recipe = Recipe.model_validate(
        {
            "model": {"tiny": {}},
            "data": {"task": "running_checksum"},
            "rollout": {
                "problems_per_step": per_step,
                "group_size": GROUP_SIZE,
                "staleness": 1_000_000,
                "max_groups": in_flight + per_step,
                "max_new_tokens": shape.longest,
            },
            "train": {"steps": 1_000_000, "minibatches": 1},
        }
    )
    plan = Plan(
        training=[Problem(str(i)) for i in range(1024)],
        held_out=[],
        longest=longest,
        max_length=longest,
        context=longest,
        placement=Placement(engines=[], ranks=[]),
        transport="memory",
        memory=None,
        lags=None,
    )
    nowhere = Path()  # nothing is written
    return Start(recipe=recipe, origin=Origin(plan, nowhere), model=nowhere, display=stderr_display())
