"""Read damaged run directories by every command that shows one."""

import io
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from arl.report.write_page import write_page
from rich.console import Console

from arl.metrics.run_status import ProcessStatus, RunStatus, write_status
from arl.metrics.sample_panels import draw as draw_sample
from arl.report.assemble import build_report
from arl.report.numbers_json import numbers_of
from arl.report.terminal import print_report
from arl.run.evaluation.score_table import find_scores, print_scores
from arl.run.samples import Wanted, read_samples
from arl.watch.run_logs import find_logs, print_ends
from arl.watch.top import show_once
from tests.fuzz.run_files import damage_run, record_run
from tests.fuzz.trials import Draw, Edge, Trial

PARQUET = "trajectories/000000.parquet"
SHOWN = ["metrics.jsonl", "metrics.jsonl", PARQUET, PARQUET, "trace.json", "recipe.yaml", "summary.json"]
FILES = {
    "report": SHOWN,
    "page": [*SHOWN, "model/tokenizer.json", "model", "checkpoints", "trajectories"],
    "samples": [PARQUET, PARQUET, PARQUET, "metrics.jsonl", "run.lock", "recipe.yaml", "summary.json", "trajectories"],
    "top": ["status.json"],
    "logs": ["logs/engine-0.log", "status.json", "recipe.yaml", "logs"],
    "scores": ["scores.json"],
}
SCORES = """[{"model": {"name": "m", "files": {}}, "fingerprint": "f", "protocol": {}, "score": {}}]"""


@contextmanager
def prepare(folder: Path) -> Iterator[Draw]:
    """Record one run, with a status and a log of its processes."""
    run = record_run(folder)
    write_status(run, _status())
    (run / "logs").mkdir(exist_ok=True)
    (run / "logs" / "engine-0.log").write_text("one\ntwo\n")
    (run / "scores.json").write_text(SCORES)

    def draw(random: Random) -> Trial:
        copy = folder / "copy" / run.name
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run, copy)
        command = random.choice(list(FILES))
        told = damage_run(random, copy, FILES[command])
        return Trial(f"{command}: {told}", lambda: COMMANDS[command](copy))

    yield draw


def _status() -> RunStatus:
    return RunStatus(
        host="elsewhere",
        pid=1,
        time=1.0,
        clock=1.0,
        stage="training",
        end="finished",
        steps=3,
        processes=(ProcessStatus(role="engine-0", node="elsewhere", pid=7),),
    )


def _console() -> Console:
    return Console(file=io.StringIO(), width=120)


def _report(run: Path) -> None:
    built = build_report([run])
    print_report(built, _console())
    numbers_of(built)


def _page(run: Path) -> None:
    write_page(build_report([run]), run.parent / "page.html")


def _samples(run: Path) -> None:
    for sample in read_samples(run, Wanted()).samples:
        _console().print(draw_sample(sample))


def _logs(run: Path) -> None:
    print_ends(find_logs(run, None), 10, lambda line: None)


COMMANDS: dict[str, Callable[[Path], None]] = {
    "report": _report,
    "page": _page,
    "samples": _samples,
    "top": lambda run: show_once(run, _console()),
    "logs": _logs,
    "scores": lambda run: print_scores(find_scores([run]), _console()),
}
RUN_DIRECTORIES = Edge(prepare, trials=100)
