"""Serve models that are files for an evaluation: engines with all devices, and nothing else beside the reward workers.

recipe ─► engine servers, supervised ─► Router          models after the first are loaded as new versions
"""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

from arl.config.cluster_section import Cluster
from arl.config.recipe import Recipe, Sync
from arl.engine.base import Engine
from arl.launch.base import Resources
from arl.launch.launchers import make_launcher
from arl.launch.placement import place
from arl.launch.trust import run_trust
from arl.run.auto import resolve_auto
from arl.run.engine_pool import open_engine_pool
from arl.run.failures import explain_deaths, reported_failures
from arl.run.processes import EngineServers, rare_collections
from arl.types import StartingVersions

OF_CLUSTERS = ("slurm", "ray")  # launchers that start processes on other nodes


def for_evaluation(recipe: Recipe) -> Recipe:
    """Return `recipe` as this machine runs it, without what only training needs: engines are all that runs.

    Secrets of an evaluation are temporary files of this machine, so engines on other nodes could not start.
    """
    changes: dict[str, object] = {
        "cluster": Cluster(),
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
async def serve_model(
    recipe: Recipe, model: str, logs: Path, note: Callable[[str], None], version: int = 0
) -> AsyncIterator[Engine]:
    """Start the recipe's engines with the model in directory `model`.

    Args:
        recipe: see `for_evaluation`.
        logs: directory of their logs.
        note: is called with one line for each engine that is replaced.
        version: which these weights are.

    Raises:
        InputError, RunError: see arl.run.train.train; no process is left.
    """
    async with (
        reported_failures(),
        make_launcher(recipe, logs) as launcher,
        explain_deaths(launcher),
    ):
        with run_trust(logs, [node.address for node in launcher.nodes]) as trust, rare_collections():
            servers = EngineServers(
                recipe=recipe,
                versions=StartingVersions(model, version),
                resources=engine_resources(recipe),
                launcher=launcher,
                trust=trust,
            )
            async with open_engine_pool(servers, await servers.start_all(), note) as pool:
                yield pool.router
