"""Measure how many short math verifications a second the reward workers do, through the pool that a run uses.

    groups of 8 responses ─► RewardPool ─► worker processes ─► graded verifications a second

Three mixtures: answers that arithmetic and spelling decide, answers that algebra decides, and nine of the former to one
of the latter. No two groups share an answer, so that nothing is taken from a cache that a run would not have.
"""

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from arl.metrics.console import stderr_display
from arl.reward.pool import RewardPool
from arl.reward.scorer import UngradedLog
from arl.types import Problem, Response

FUNCTION = "arl.reward.math.grader:score"
GROUP_SIZE = 8
OPEN_GROUPS = 64  # that wait for a worker at once, as in a run whose engines are ahead
ALGEBRA_SHARE = 0.1  # of the problems, in the mixture: MATH has one in five that is no plain number
Group = tuple[Problem, list[Response]]
MakeGroup = Callable[[random.Random], Group]


def bench_rewards(workers: int, groups: int, repeats: int) -> dict[str, Any]:
    """Return verifications a second of each mixture: the median, and all repeats."""
    mixtures: dict[str, MakeGroup] = {"exact": _exact_group, "algebra": _algebra_group, "mixture": _group_of_mixture}
    rates: dict[str, list[float]] = {name: [] for name in mixtures}
    for repeat in range(repeats):
        for name, make in mixtures.items():
            draw = random.Random(f"{name} {repeat}")
            count = max(1, groups // 10) if name == "algebra" else groups
            drawn = [make(draw) for _ in range(count)]
            rates[name].append(round(_rate(drawn, workers), 1))
    return {
        "workers": workers,
        "group_size": GROUP_SIZE,
        "verifications_per_second": {name: statistics.median(values) for name, values in rates.items()},
        "repeats": rates,
    }


def _rate(groups: Sequence[Group], workers: int) -> float:
    """Return verifications a second over all groups, after the workers have started."""
    with tempfile.TemporaryDirectory() as directory:
        return asyncio.run(_grade_all(groups, workers, Path(directory) / "reward.log"))


async def _grade_all(groups: Sequence[Group], workers: int, log: Path) -> float:
    pool = RewardPool(
        [FUNCTION],
        workers=workers,
        timeout=30.0,
        memory_gb=4.0,
        startup=120.0,
        log=log,
        environment={},
        ungraded=UngradedLog(log, stderr_display().note),
    )
    scorer = pool.scorer(FUNCTION)
    slots = asyncio.Semaphore(OPEN_GROUPS)

    async def grade(problem: Problem, responses: list[Response]) -> int:
        async with slots:
            grades = await asyncio.gather(*(scorer.score(problem, response) for response in responses))
            return len(grades)

    first = [_exact_group(random.Random(worker)) for worker in range(workers)]
    async with pool:
        await asyncio.gather(*(grade(*group) for group in first))
        start = time.perf_counter()
        graded = await asyncio.gather(*(grade(*group) for group in groups))
        return sum(graded) / (time.perf_counter() - start)


def _exact_group(draw: random.Random) -> Group:
    """Draw a problem with a number as its answer, and responses that give it in usual forms, or another one."""
    value = draw.randint(1000, 10**6)
    forms = [f"\\boxed{{{value}}}", f"#### {value:,}", f"The answer is ${value}.00.", f"That leaves {value:,} apples."]
    wrong = [f"\\boxed{{{value + draw.randint(1, 99)}}}", f"#### {value}.5", "\\boxed{\\frac{1}{2}}", "I do not know."]
    return _group(str(value), draw.choices(forms + wrong, k=GROUP_SIZE))


def _algebra_group(draw: random.Random) -> Group:
    """Draw a problem with a formula as its answer, and responses that rewrite it, or give another one."""
    one = draw.randint(2, 10**4)
    other = draw.randint(2, 10**4)
    gold = f"{one}x^2+{other}x"
    forms = [f"x({one}x+{other})", f"{other}x+{one}x^2", f"{other}x+{one}x\\cdot x"]
    wrong = [f"x({one}x-{other})", f"{other}x^2+{one}x", f"{one}x^2"]
    texts = draw.choices(forms + wrong, k=GROUP_SIZE)
    return _group(gold, [f"\\boxed{{{text}}}" for text in texts])


def _group_of_mixture(draw: random.Random) -> Group:
    make = _algebra_group if draw.random() < ALGEBRA_SHARE else _exact_group
    return make(draw)


def _group(gold: str, texts: Sequence[str]) -> Group:
    return Problem(f"bench {gold}", answer=gold), [Response(text) for text in texts]
