"""Measure versions beside the run that trains them, by what `arl eval` does: a process that the run's launcher starts.

    python -m arl.run.evaluation.beside RUN THREADS

    evaluations/next.json ─► serve the model, or load it as the next version ─► suite after suite ─► a line of output
          ▲                                                                                              │
    the controller: arl.run.evaluation.during  ◄─────────────────────────────────────────────────────────┘

The engine is a child of this process. It stays, and is warm, until this process ends.
"""

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import msgspec
from msgspec import Struct

from arl import clock
from arl.clock import outer_deadline
from arl.config.recipe import Recipe
from arl.config.recipe_file import load_recipe
from arl.data.model_limits import model_limits
from arl.data.tokenizer import load_codec
from arl.errors import leaves, short_message
from arl.launch.devices import visible_devices
from arl.metrics.run_files import RECIPE
from arl.run.evaluation.evaluate import measure_suites
from arl.run.evaluation.serving import for_evaluation, serve_model
from arl.run.evaluation.suite import open_suite
from arl.run.rewards import open_rewards, reward_name
from arl.types import Accuracy, WeightUpdate

MODULE = "arl.run.evaluation.beside"
NEXT = "evaluations/next.json"  # in the run's directory: a MeasureRequest
NOTE = "note: "  # begins a line of output that the run's console shows
OUTCOME = "outcome: "  # begins a line of output with a MeasureOutcome
POLL_SECONDS = 1.0
LOWEST_PRIORITY = 19  # niceness
PATIENCE = 10  # times as long as in training: the deadline of a reward at the lowest priority


class MeasureRequest(Struct, frozen=True):
    """Ask for the accuracies of one version."""

    version: int
    model: str  # directory of its weights


class MeasureOutcome(Struct, frozen=True):
    """Hold the accuracies of a version, or why there are none."""

    version: int
    accuracies: tuple[Accuracy, ...] = ()  # one of each suite
    error: str = ""


def recipe_beside(recipe: Recipe, threads: int) -> Recipe:
    """Return a run's recipe with one engine on this machine.

    Only deadlines.evaluation bounds waits, because single ones take long at the lowest priority.
    """
    patient = dict.fromkeys(("startup", "swap", "generate", "step"), recipe.deadlines.evaluation)
    changes = {
        "launcher": "local",
        "engine": recipe.engine.model_copy(update={"replicas": 1, "threads": threads}),
        "deadlines": recipe.deadlines.model_copy(update={**patient, "reward": PATIENCE * recipe.deadlines.reward}),
    }
    return for_evaluation(recipe.model_copy(update=changes))


async def measure_versions(run: Path, threads: int) -> None:
    """Measure one version after the other, without an end.

    Waits for the next request; unblocked by the controller, which replaces the file, or ends this process.
    """
    recipe = recipe_beside(load_recipe(run / RECIPE), threads)
    logs = run / "logs" / "evaluation"
    logs.mkdir(exist_ok=True)
    suites = [open_suite(recipe, name) for name in recipe.eval.suites]
    functions = sorted({suite.reward for suite in suites} - {reward_name(recipe)})
    request = _read_request(run)
    codec = load_codec(request.model)
    context = model_limits(request.model).context
    async with (
        serve_model(recipe, request.model, logs, _note, request.version) as engine,
        open_rewards(recipe, logs, _note, functions) as rewards,
    ):
        while True:
            version = request.version
            patience = recipe.deadlines.step
            accuracies = await measure_suites(suites, version, engine, codec, rewards, context, patience)
            _report(MeasureOutcome(version, tuple(accuracies)))
            request = await _next_request(run, version)
            what = f"the engine to load version {request.version}"
            async with outer_deadline(recipe.deadlines.swap_and_restart, "evaluation", what):
                await engine.update_weights(WeightUpdate(request.version, request.model))


async def _next_request(run: Path, version: int) -> MeasureRequest:
    """Wait for another request than that of `version`."""
    while True:
        request = _read_request(run)
        if request.version != version:
            return request
        await asyncio.sleep(POLL_SECONDS)


def _read_request(run: Path) -> MeasureRequest:
    return msgspec.json.decode((run / NEXT).read_bytes(), type=MeasureRequest)


def _report(outcome: MeasureOutcome) -> None:
    print(f"{OUTCOME}{msgspec.json.encode(outcome).decode()}", flush=True)


def _note(text: str) -> None:
    print(f"{NOTE}{text}", flush=True)


async def _until_terminated(run: Path, threads: int) -> None:
    """Measure until SIGTERM, which cancels it, so that engine and reward workers end first."""
    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    await measure_versions(run, threads)


def main(run: Path, threads: int) -> None:
    """Serve the run in directory `run`; without a GPU at the lowest priority, so that training has the cores."""
    if not visible_devices():
        os.nice(LOWEST_PRIORITY)
    try:
        with contextlib.suppress(asyncio.CancelledError):
            clock.run(lambda: _until_terminated(run, threads))
    except Exception as error:
        cause = next(leaves(error))
        _report(MeasureOutcome(_read_request(run).version, error=short_message(f"{type(cause).__name__}: {cause}")))
        raise


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
