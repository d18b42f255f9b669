"""Measure what evaluation during training costs the training: `arl bench evaluation`.

One recipe with and without eval.every, in interleaved pairs. Seconds of the clock say how much later training is done.
CPU seconds of the run's own processes say how much more it computes, and are less disturbed by what else the machine
does. Both are set against the CPU seconds of the evaluation's engine.
"""

import os
import statistics
import tempfile
import threading
from pathlib import Path
from typing import Any

from arl.config.recipe import Recipe
from arl.config.recipe_file import load_recipe
from arl.metrics.console import ConsoleDisplay, stderr_display
from arl.run.evaluation.evaluator_link import MODULE
from arl.run.train import train

SERVER = "arl.engine."  # begins the module of an engine server
MODULES = {"arl.train.rank": "rank", MODULE: "evaluator"}
SAMPLE_SECONDS = 0.1
TICKS = os.sysconf("SC_CLK_TCK")


def bench_evaluation(recipe: Path, overrides: list[str], every: int, pairs: int) -> dict[str, Any]:
    """Run `recipe` in pairs, without evaluation during training and with it every so many steps."""
    rows: dict[str, list[dict[str, Any]]] = {"without": [], "with": []}
    settings = {"without": 0, "with": every}
    with tempfile.TemporaryDirectory(prefix="arl-bench-") as directory, stderr_display() as display:
        for pair in range(pairs):
            names = list(settings)
            if pair % 2 == 1:
                names.reverse()
            for name in names:
                display.note(f"pair {pair}: {name} evaluation")
                changes = [f"output.directory={directory}", f"eval.every={settings[name]}"]
                loaded = load_recipe(recipe, [*overrides, *changes])
                row = _measure_run(loaded, display)
                rows[name].append(row)
    return {"recipe": recipe.name, "every": every, **_compare(rows), "runs": rows}


def _measure_run(recipe: Recipe, display: ConsoleDisplay) -> dict[str, Any]:
    with _ProcessTimes(recipe) as times:
        summary = train(recipe, display)
    seconds = round(summary.training_seconds, 2)
    return {"training_seconds": seconds, **times.cpu_seconds()}


def _compare(rows: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Compare the medians of pairs, and say how far runs of one kind lie apart."""
    used = statistics.median(row["evaluation"] for row in rows["with"])
    report: dict[str, Any] = {"evaluation_engine_cpu_seconds": used}
    for column in ("training_seconds", "training_cpu"):
        values_with = [_column(row, column) for row in rows["with"]]
        values_without = [_column(row, column) for row in rows["without"]]
        pairs = zip(values_with, values_without, strict=True)
        more = statistics.median(one - other for one, other in pairs)
        share = more / max(used, 1e-9)
        spread = max(values_without) - min(values_without)
        report[column] = {
            "more": round(more, 2),
            "share_of_evaluation": round(share, 3),
            "spread_without": round(spread, 2),
        }
    return report


def _column(row: dict[str, Any], column: str) -> float:
    """Return one number of a run; training_cpu: of all processes but the evaluation's."""
    if column != "training_cpu":
        return float(row[column])
    seconds: float = row["controller"] + row["trainer"] + row["engine"]
    return seconds


class _ProcessTimes:
    """Watch the CPU seconds of a run's processes while its context lasts, by reading /proc."""

    def __init__(self, recipe: Recipe) -> None:
        self._num_engines = recipe.engine.replicas
        self._seen: dict[str, dict[int, float]] = {}  # kind -> pid -> CPU seconds
        self._own_before = 0.0
        self._own = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="process times")

    def __enter__(self) -> "_ProcessTimes":
        self._own_before = _cpu_seconds(os.getpid())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._own = _cpu_seconds(os.getpid()) - self._own_before

    def cpu_seconds(self) -> dict[str, float]:
        """Return CPU seconds by side; servers that started after the run's own are the evaluation's."""
        servers = list(self._seen["server"].values())
        ranks = self._seen["rank"].values()
        evaluators = self._seen.get("evaluator", {}).values()
        seconds = {
            "controller": self._own,
            "trainer": sum(ranks),
            "engine": sum(servers[: self._num_engines]),
            "evaluation": sum(servers[self._num_engines :]),
            "evaluator": sum(evaluators),
        }
        return {name: round(value, 2) for name, value in seconds.items()}

    def _watch(self) -> None:
        """Sample until the context ends. A process loses at most its last tenth of a second."""
        while not self._ended.wait(SAMPLE_SECONDS):
            for pid in _children(os.getpid()):
                try:
                    self._look_at(pid)
                except (OSError, IndexError):  # it has ended meanwhile
                    continue

    def _look_at(self, pid: int) -> None:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        kind = _kind(command.decode(errors="replace"))
        if kind is not None:
            self._seen.setdefault(kind, {})[pid] = _cpu_seconds(pid)


def _kind(command: str) -> str | None:
    """Return what a process is, by the words of its command line, which zeros separate."""
    words = command.split("\0")
    if any(word.startswith(SERVER) for word in words):
        return "server"
    kinds = [MODULES[word] for word in words if word in MODULES]
    return kinds[0] if kinds else None


def _children(pid: int) -> list[int]:
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():  # a child belongs to the thread that has started it
        try:
            of_thread = (task / "children").read_text()
        except OSError:  # the thread has ended meanwhile
            continue
        children += [int(child) for child in of_thread.split()]
    return children


def _cpu_seconds(pid: int) -> float:
    """Return user and system seconds of a process."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    _, _, after_name = stat.rpartition(")")
    fields = after_name.split()
    ticks = int(fields[11]) + int(fields[12])
    return ticks / TICKS
