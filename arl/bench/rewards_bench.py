"""Measure how many answers are graded a second: our grader through a real pool, beside math-verify where it is."""

import asyncio
import importlib.util
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from arl.reward.pool import RewardPool
from arl.reward.scorer import UngradedLog
from arl.reward.worker import Settings
from arl.types import Problem, Response

GRADERS = {"arl": "arl.reward.math.grader:score", "math-verify": "arl.reward.math.math_verify:score"}
KINDS = (  # gold answer and response, with a number that differs from call to call, so that no cache answers
    ("{n}", r"So there are $3 \cdot 4 = 12$ of them, hence \boxed{{n}}."),
    ("{n}", "She sells {n} eggs, so the answer is ${n}.50."),
    (r"\frac{{n}}{7}", r"It is \boxed{\dfrac{{n}}{7}}."),
    (r"\frac{\sqrt{{n}}}{2}", r"\boxed{\sqrt{\frac{{n}}{4}}}"),
    ("({n}, 5)", r"The point is \boxed{({n}, 5)}"),
    (r"[0, {n})", r"\boxed{0 \le x < {n}}"),
    (r"x^2 + {n}x", r"\boxed{x(x + {n})}"),
    ("B", "The correct option is (B), because {n} is odd."),
)


def bench_rewards(calls: int, workers: int, repeats: int) -> dict[str, Any]:
    """Grade `calls` answers of all kinds at once, several times over, in fresh workers each time."""
    sizes = {"arl": calls}
    if importlib.util.find_spec("math_verify"):
        sizes["math-verify"] = max(1, calls // 20)  # it takes so much longer
    rates = {name: [asyncio.run(_rate(GRADERS[name], n, workers)) for _ in range(repeats)] for name, n in sizes.items()}
    per_second = {name: {"median": round(statistics.median(of)), "repeats": of} for name, of in rates.items()}
    return {"calls": calls, "workers": workers, "verifications_per_second": per_second}


async def _rate(function: str, calls: int, workers: int) -> int:
    texts = [[part.replace("{n}", str(100 + n)) for part in KINDS[n % len(KINDS)]] for n in range(calls)]
    settings = Settings((function,), workers, timeout=30.0, memory_gb=4.0)
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory, "reward.log")
        async with RewardPool(settings, 60.0, log, os.environ, UngradedLog(log, print)) as pool:
            start = time.perf_counter()
            await asyncio.gather(*(pool.call(function, Problem("", gold), Response(text)) for gold, text in texts))
            return round(calls / (time.perf_counter() - start))
