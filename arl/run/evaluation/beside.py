"""Measure one version beside the run that trains, as `arl eval` does: a process that the run's launcher starts.

python -m arl.run.evaluation.beside RUN VERSION THREADS

checkpoints/step_VERSION ─► evaluate_model ─► evaluations/step_VERSION/scores.json ─► arl.run.evaluation.during
"""

import os
import signal
import sys
from pathlib import Path

from arl.config.recipe_file import load_recipe
from arl.errors import ArlError
from arl.launch.devices import visible_devices
from arl.metrics.console import stderr_display
from arl.metrics.run_files import LOGS, RECIPE
from arl.run.evaluation.evaluate_model import Request, evaluate_model
from arl.run.evaluation.scoreboard import CHECKPOINTS, EVALUATIONS

LOWEST_PRIORITY = 19  # niceness
REWARD_FACTOR = 10  # times as long as in training: the deadline of a reward at the lowest priority
WAITS = ("startup", "swap", "generate", "step")  # bounded by deadlines.evaluation alone, because they take long


def main(run: Path, version: int, threads: int) -> None:
    """Measure a version on one engine; without a GPU at the lowest priority, so that training has the cores."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # so engine and rewards end first
    if not visible_devices():
        os.nice(LOWEST_PRIORITY)
    recipe = load_recipe(run / RECIPE)
    deadlines = recipe.deadlines
    overrides = ["engine.replicas=1", "engine.min_replicas=null", f"engine.threads={threads}"]
    overrides += [f"deadlines.reward={REWARD_FACTOR * deadlines.reward}"]
    overrides += [f"deadlines.{wait}={deadlines.evaluation}" for wait in WAITS]
    request = Request(
        model=str(run / CHECKPOINTS / f"step_{version}"),
        suites=recipe.eval.suites,
        recipe=run / RECIPE,
        overrides=overrides,
        defaults={},
        logs=run / LOGS / "evaluation",
        output=run / EVALUATIONS / f"step_{version}",
        version=version,
    )
    with stderr_display() as display:
        evaluate_model(request, display)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    except ArlError as error:
        sys.exit(f"arl: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
