"""Measure the sandbox: runs a second, the first command of a shell, and what endless programs cost honest ones."""

import multiprocessing
import signal
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from arl.sandbox.base import Program
from arl.sandbox.bubblewrap import BubblewrapSandbox

HONEST = Program(code="print(sum(range(1000)))")
LIMIT = 2.0  # seconds of an endless program
ENDLESS = Program(code="while True: pass", seconds=LIMIT)
SHELLS = 20


def bench_sandbox(runs: int, workers: int, endless: int) -> dict[str, Any]:
    """Run programs in `workers` processes with a sandbox each, as reward workers do, then the other two."""
    # The default ends a worker without a word; as a copy of a command it would end with a message.
    end = (signal.SIGTERM, signal.SIG_DFL)
    with multiprocessing.get_context("fork").Pool(workers, initializer=signal.signal, initargs=end) as pool:
        spans = pool.map(_span, [runs] * workers, chunksize=1)
    seconds = max(end for _, end in spans) - min(begin for begin, _ in spans)
    return {
        "runs": runs * workers,
        "workers": workers,
        "runs_per_second": round(runs * workers / seconds, 1),
        "first_command_ms": _first_commands(),
        "endless": {"programs": endless, "limit_s": LIMIT, **_beside_endless(endless)},
    }


def _span(runs: int) -> tuple[float, float]:
    """Return when the first run began and the last one ended."""
    sandbox = BubblewrapSandbox()
    sandbox.run(HONEST)
    begin = time.time()
    for _ in range(runs):
        assert sandbox.run(HONEST).outcome == "done"
    end = time.time()
    sandbox.close()
    return begin, end


def _first_commands() -> dict[str, float]:
    """Measure from asking for a shell to its first answer."""
    sandbox = BubblewrapSandbox()
    times = []
    for _ in range(SHELLS):
        begin = time.perf_counter()
        shell = sandbox.shell(seconds=10, memory_mb=256)
        assert shell.run("6 * 7").stdout == "42\n"
        times.append(1000 * (time.perf_counter() - begin))
        shell.close()
    sandbox.close()
    return {"median": round(statistics.median(times), 1), "max": round(max(times), 1)}


def _beside_endless(endless: int) -> dict[str, float]:
    """Measure honest programs alone, and beside endless ones that began just before them."""
    sandbox = BubblewrapSandbox()
    alone = _slowest_honest(sandbox, runs=10)
    with ThreadPoolExecutor(endless) as threads:
        others = [threads.submit(sandbox.run, ENDLESS) for _ in range(endless)]
        beside = _slowest_honest(sandbox, runs=10)
        assert all(other.result().outcome == "time" for other in others)
    sandbox.close()
    return {"honest_alone_s": alone, "honest_beside_s": beside, "delay_in_limits": round((beside - alone) / LIMIT, 2)}


def _slowest_honest(sandbox: BubblewrapSandbox, runs: int) -> float:
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        assert sandbox.run(HONEST).outcome == "done"
        times.append(time.perf_counter() - begin)
    return round(max(times), 3)
