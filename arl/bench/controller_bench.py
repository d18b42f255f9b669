"""Measure what the controller itself costs, in time and in memory: `arl bench controller`. Torch-free.

The null world (arl.bench.null) is opened, and the controller of every run (arl.rollout.controller) runs in it, with an
observer that records nothing. Everything else is real, on the wall clock, in one process and one thread. The null
engine answers a few of the oldest requests in every turn of the loop, so as many episodes are open as the staleness
gate lets in.

    one long run                             ─► throughput: episodes a second
                                             └► memory: resident, from its beginning to its end
    shorter ones, ever more episodes open    ─► groups: microseconds of this process for each, side by side
"""

import statistics
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import psutil
from msgspec import Struct

from arl import clock
from arl.bench.null import NullCheckpoints, NullObserver, NullWorld
from arl.config.recipe import Recipe
from arl.launch.placement import Placement
from arl.metrics.console import stderr_display
from arl.rollout.controller import Controller
from arl.run.preflight import Plan
from arl.run.processes import rare_collections
from arl.run.world import RunContext
from arl.types import Batch, Problem, StepResult, StepWaits

GROUP_SIZE = 8
STALENESS = 4
NUM_PROBLEMS = 1024
NUM_SAMPLES = 100  # of the resident memory in one run
WARM = 0.1  # of a run: its memory is compared from here on


class Run(Struct, frozen=True):
    """Hold one run of the controller from its start to its end."""

    concurrent: int  # the staleness gate keeps at least so many episodes open, except at the beginning and the end
    mean_open: float  # episodes, as the engine saw them
    episodes: int
    wall_seconds: float
    cpu_seconds: float  # of this process
    resident: list[int]  # bytes, at even distances of steps

    @property
    def cpu_us_per_group(self) -> float:
        return self.cpu_seconds * 1e6 * GROUP_SIZE / self.episodes


def bench_controller(concurrent: int, episodes: int, repeats: int) -> dict[str, Any]:
    """Measure the long run first, while the process is small, then the sizes in interleaved repeats.

    Args:
        concurrent: episodes open at a time; the sizes are an eighth of it, itself and eight times as many.
        episodes: of the long run.
        repeats: of the shorter ones, each of which fills and empties the largest size four times.
    """
    with stderr_display() as display, rare_collections():  # as in a run
        display.note(f"{concurrent} open, {episodes} episodes")
        long = _run(concurrent, episodes)
        sizes = [concurrent // 8, concurrent, concurrent * 8]
        runs: dict[int, list[Run]] = {size: [] for size in sizes}
        for repeat in range(repeats):
            for size in sizes:
                display.note(f"repeat {repeat}: {size} open")
                runs[size].append(_run(size, 4 * sizes[-1]))
    mib = [round(size / 2**20, 2) for size in long.resident]
    return {
        "group_size": GROUP_SIZE,
        "staleness": STALENESS,
        "throughput": {
            "concurrent_episodes": long.concurrent,
            "mean_open_episodes": round(long.mean_open),
            "episodes": long.episodes,
            "wall_seconds": round(long.wall_seconds, 2),
            "cpu_seconds": round(long.cpu_seconds, 2),
            "episodes_per_s": round(long.episodes / long.wall_seconds),
            "episodes_per_cpu_s": round(long.episodes / long.cpu_seconds),
        },
        "groups": _groups(runs),
        "memory": {"warm_mib": mib[int(WARM * len(mib))], "end_mib": mib[-1], "resident_mib": mib},
    }


def _run(concurrent: int, episodes: int) -> Run:
    """Run at least `episodes`, in whole steps.

    The gate lets (η+1)·P groups in, of which fewer than P wait for a step.
    """
    problems_per_step = max(concurrent // (STALENESS * GROUP_SIZE), 1)
    per_step = problems_per_step * GROUP_SIZE
    steps = -(-episodes // per_step)
    world = NullWorld()
    context = _make_context(problems_per_step, steps)
    sampler = _Sampler(steps)

    async def main() -> None:
        async with world.open(context) as parts:
            controller = Controller(parts, steps, sampler, NullCheckpoints())
            await controller.run()
        assert controller.ledger.trained == steps * problems_per_step

    wall = perf_counter()
    cpu = process_time()
    clock.run(main)
    return Run(
        concurrent=concurrent,
        mean_open=world.engine.mean_open,
        episodes=steps * per_step,
        wall_seconds=perf_counter() - wall,
        cpu_seconds=process_time() - cpu,
        resident=sampler.resident,
    )


def _make_context(problems_per_step: int, steps: int) -> RunContext:
    recipe = Recipe.model_validate(
        {
            "model": {"tiny": {}},
            "data": {"task": "running_checksum"},
            "rollout": {"problems_per_step": problems_per_step, "group_size": GROUP_SIZE, "staleness": STALENESS},
            "train": {"steps": steps, "minibatches": 1},
        }
    )
    plan = Plan(
        training=[Problem(str(i)) for i in range(NUM_PROBLEMS)],
        held_out=[],
        longest=1024,
        max_length=1024,
        context=1024,
        placement=Placement(engines=[], ranks=[]),
        transport="memory",
        memory=None,
        lags=None,
    )
    nowhere = Path()  # nothing is written
    return RunContext(recipe=recipe, plan=plan, directory=nowhere, display=stderr_display(), model=nowhere)


class _Sampler(NullObserver):
    """Records the memory of this process about NUM_SAMPLES times in a run."""

    def __init__(self, steps: int) -> None:
        self._interval = max(steps // NUM_SAMPLES, 1)
        self.resident: list[int] = []

    def step_finished(self, batch: Batch, result: StepResult, waits: StepWaits) -> None:
        if result.version % self._interval == 0:
            self.resident.append(psutil.Process().memory_info().rss)


def _groups(runs: dict[int, list[Run]]) -> dict[str, Any]:
    """Compare runs by their number of concurrent episodes."""
    repeats = {size: [round(run.cpu_us_per_group, 1) for run in of_size] for size, of_size in runs.items()}
    best = {size: min(values) for size, values in repeats.items()}
    return {
        "mean_open_episodes": {
            size: round(statistics.mean(run.mean_open for run in of_size)) for size, of_size in runs.items()
        },
        "cpu_us_per_group": best,
        "ratio_to_fewest": {size: round(value / best[min(best)], 2) for size, value in best.items()},
        "repeats": repeats,
    }
