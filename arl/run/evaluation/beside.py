"""Measure one version beside the run that trains, as `arl eval` does: a process that the run's launcher starts.

    python -m arl.run.evaluation.beside RUN VERSION THREADS

    checkpoints/step_VERSION ─► serve the model ─► suite after suite ─► a line of output: its MeasureOutcome

The engine is a child of this process. The run's side is arl.run.evaluation.during.
"""

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import msgspec

from arl import clock
from arl.config.recipe import Recipe
from arl.config.recipe_file import load_recipe
from arl.data.model_limits import model_limits
from arl.data.tokenizer import load_codec
from arl.errors import leaves, short_message
from arl.launch.devices import visible_devices
from arl.metrics.run_files import LOGS, RECIPE
from arl.run.evaluation.during import NOTE, OUTCOME, MeasureOutcome
from arl.run.evaluation.evaluate import measure_suites
from arl.run.evaluation.evaluate_model import for_evaluation, serve_model
from arl.run.evaluation.scoreboard import CHECKPOINTS
from arl.run.evaluation.suite import open_suite
from arl.run.rewards import open_rewards, reward_name
from arl.types import Accuracy

LOWEST_PRIORITY = 19  # niceness
PATIENCE = 10  # times as long as in training: the deadline of a reward at the lowest priority


def recipe_beside(recipe: Recipe, threads: int) -> Recipe:
    """Return a run's recipe with one engine on this machine.

    Only deadlines.evaluation bounds waits, because single ones take long at the lowest priority.
    """
    longer = dict.fromkeys(("startup", "swap", "generate", "step"), recipe.deadlines.evaluation)
    changes = {
        "launcher": "local",
        "engine": recipe.engine.model_copy(update={"replicas": 1, "threads": threads}),
        "deadlines": recipe.deadlines.model_copy(update={**longer, "reward": PATIENCE * recipe.deadlines.reward}),
    }
    return for_evaluation(recipe.model_copy(update=changes))


async def measure_version(run: Path, version: int, threads: int) -> list[Accuracy]:
    """Measure a version of the run in directory `run` on each of its suites.

    Raises:
        InputError, RunError: see `serve_model` and `measure_suites`.
    """
    recipe = recipe_beside(load_recipe(run / RECIPE), threads)
    model = str(run / CHECKPOINTS / f"step_{version}")
    logs = run / LOGS / "evaluation"
    logs.mkdir(exist_ok=True)
    suites = [open_suite(recipe, name) for name in recipe.eval.suites]
    functions = sorted({suite.reward for suite in suites} - {reward_name(recipe)})
    async with (
        serve_model(recipe, model, logs, _note, version) as engine,
        open_rewards(recipe, logs, _note, functions) as rewards,
    ):
        codec = load_codec(model)
        context = model_limits(model).context
        return await measure_suites(suites, version, engine, codec, rewards, context, recipe.deadlines.step)


def _note(text: str) -> None:
    print(f"{NOTE}{text}", flush=True)


async def _until_terminated(run: Path, version: int, threads: int) -> list[Accuracy]:
    """Measure until SIGTERM, which cancels it, so that engine and reward workers end first."""
    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    return await measure_version(run, version, threads)


def main(run: Path, version: int, threads: int) -> None:
    """Measure and report; without a GPU at the lowest priority, so that training has the cores."""
    if not visible_devices():
        os.nice(LOWEST_PRIORITY)
    try:
        accuracies = clock.run(lambda: _until_terminated(run, version, threads))
    except Exception as error:
        cause = next(leaves(error))
        _report(MeasureOutcome(error=short_message(f"{type(cause).__name__}: {cause}")))
        raise
    _report(MeasureOutcome(tuple(accuracies)))


def _report(outcome: MeasureOutcome) -> None:
    print(f"{OUTCOME}{msgspec.json.encode(outcome).decode()}", flush=True)


if __name__ == "__main__":
    with contextlib.suppress(asyncio.CancelledError):
        main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
