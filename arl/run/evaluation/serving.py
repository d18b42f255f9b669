"""Serve models that are files for an evaluation: engines with all devices, and nothing else beside the reward workers.

recipe ─► engine servers, supervised ─► Router          models after the first are loaded as new versions
"""

import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from arl.clock import outer_deadline
from arl.config.eval_section import HELD_OUT
from arl.config.recipe import Recipe, Sync
from arl.data.model_limits import model_limits
from arl.data.prompt_format import recipe_format
from arl.data.tokenizer import load_codec
from arl.engine.base import Engine
from arl.errors import InputError
from arl.launch.base import Resources
from arl.launch.launchers import make_launcher
from arl.launch.placement import place
from arl.launch.trust import run_trust
from arl.run.auto import resolve_auto
from arl.run.engine_pool import connect_engines
from arl.run.engines import EngineServers
from arl.run.evaluation.measure import measure_held_out
from arl.run.evaluation.suite import open_suite
from arl.run.failures import explain_deaths, reported_failures
from arl.run.gc_pacing import rare_collections
from arl.run.rewards import evaluation_scorer, open_rewards
from arl.types import Accuracy, StartingVersions, WeightUpdate

OF_CLUSTERS = ("slurm", "ray")  # launchers that start processes on other nodes


@dataclass(frozen=True)
class Served:
    """Hold what serves a model."""

    engine: Engine
    logs: Path


def for_evaluation(recipe: Recipe) -> Recipe:
    """Return `recipe` as this machine runs it, without what only training needs: engines are all that runs.

    Logs and secrets of an evaluation are temporary files of this machine, so engines on other nodes could not start.
    """
    changes: dict[str, object] = {
        "cluster": recipe.cluster.model_copy(update={"nodes": 1, "min_nodes": None}),
        "launcher": "local" if recipe.launcher in OF_CLUSTERS else recipe.launcher,
        "world": "wall",
        "mode": "disaggregated",  # engines never give up their memory
        "train": recipe.train.model_copy(update={"ranks": 1}),
        "rollout": recipe.rollout.model_copy(update={"lag": None}),
        "sync": Sync(),  # models are files
        "eval": recipe.eval.model_copy(update={"every": 0}),
    }
    return resolve_auto(recipe.model_copy(update=changes))


def engine_resources(recipe: Recipe) -> list[Resources]:
    """Give all cores and devices to the engines.

    Raises:
        RecipeError: there are GPUs, but fewer than the engines need.
    """
    launcher = make_launcher(recipe, Path())
    shared = place(recipe.model_copy(update={"mode": "collocated"}), launcher.nodes)
    return [replace(resources, takes_turns=False) for resources in shared.engines]


@contextlib.asynccontextmanager
async def serve_model(recipe: Recipe, model: Path, note: Callable[[str], None]) -> AsyncIterator[Served]:
    """Start the recipe's engines with the model in directory `model`.

    Args:
        recipe: see `for_evaluation`.
        note: is called with one line for each engine that is replaced.

    Raises:
        InputError, RunError: see arl.run.train.train; no process is left.
    """
    logs = Path(tempfile.mkdtemp(prefix="arl-eval-"))
    async with (
        reported_failures(),
        make_launcher(recipe, logs) as launcher,
        explain_deaths(launcher),
    ):
        with run_trust(logs, [node.address for node in launcher.nodes]) as trust:
            servers = EngineServers(
                recipe=recipe,
                versions=StartingVersions(str(model)),
                resources=engine_resources(recipe),
                launcher=launcher,
                trust=trust,
            )
            async with connect_engines(servers, await servers.start_all(), note) as engine:
                with rare_collections():
                    yield Served(engine, logs)
    shutil.rmtree(logs)  # after a failure they are kept, because the message names them


async def evaluate_models(recipe: Recipe, models: Sequence[Path], note: Callable[[str], None]) -> list[Accuracy]:
    """Measure each of `models`, which have one shape, on the recipe's own evaluation problems.

    Raises:
        InputError, RunError: see `serve_model`.
    """
    recipe = for_evaluation(recipe)
    if recipe.eval.problems == 0:
        raise InputError("eval.problems 0: nothing to evaluate on")
    problems = open_suite(recipe, HELD_OUT).problems
    first = str(models[0])
    codec = load_codec(first, recipe_format(recipe.data))
    context = model_limits(first).context
    accuracies = []
    async with serve_model(recipe, models[0], note) as served, open_rewards(recipe, served.logs, note) as rewards:
        scorer = evaluation_scorer(recipe, rewards)
        for version, model in enumerate(models):
            if version > 0:
                patience = recipe.deadlines.swap_and_restart
                async with outer_deadline(patience, "controller", f"the engines to load {model}"):
                    await served.engine.update_weights(WeightUpdate(version, str(model)))
            accuracy = await measure_held_out(recipe, problems, version, served.engine, codec, scorer, context)
            accuracies.append(accuracy)
    return accuracies
