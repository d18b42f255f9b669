"""Measure sampled accuracy on held-out problems, of the version that a run's engines serve, or of models on disk.

problems ─► one episode each, all open at once ─► rewards ─► Accuracy
"""

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from arl.clock import deadline
from arl.config.imports import import_function
from arl.config.recipe import Recipe, Sync
from arl.data.text_codec import TextCodec
from arl.data.tokenizer import load_codec
from arl.engine.base import Engine
from arl.errors import InputError
from arl.launch.address import new_key
from arl.launch.launchers import make_launcher
from arl.rollout.episodes import Episodes, Rewards
from arl.run.engines import EngineServers, connect_engines
from arl.run.failures import explain_deaths, reported_failures
from arl.run.preflight import Plan, preflight
from arl.run.rewards import open_rewards
from arl.tasks.registry import env_name
from arl.types import Accuracy, Problem, StartingVersions, WeightUpdate


def make_episodes(recipe: Recipe, plan: Plan, engine: Engine, codec: TextCodec, rewards: Rewards) -> Episodes:
    """Build the episodes of the recipe's training groups."""
    return Episodes(
        engine,
        codec,
        rewards,
        env=import_function(env_name(recipe), "rollout.env"),
        rollout=recipe.rollout,
        seed=recipe.seed,
        max_length=plan.max_length,
    )


def held_out_episodes(recipe: Recipe, plan: Plan, engine: Engine, codec: TextCodec, rewards: Rewards) -> Episodes:
    """Build the episodes of an evaluation: one per problem, at its temperature."""
    changes = {
        "group_size": 1,
        "temperature": recipe.eval.temperature,
    }
    rollout = recipe.rollout.model_copy(update=changes)
    evaluation = recipe.model_copy(update={"rollout": rollout})
    return make_episodes(evaluation, plan, engine, codec, rewards)


async def evaluate(episodes: Episodes, problems: Sequence[Problem], name: str) -> Accuracy:
    """Measure the accuracy of the version that the engine serves; it must not load another one meanwhile.

    Args:
        name: of the evaluation; what is sampled depends on it, on the seed and on the weights alone.
    """
    runs = []
    async with asyncio.TaskGroup() as tasks:
        for i, problem in enumerate(problems):
            sessions = episodes.open(f"{name}.{i}", problem)
            runs.append(tasks.create_task(episodes.run(problem, sessions)))
    trajectories = []
    versions: set[int] = set()
    for run in runs:
        (trajectory,) = run.result()
        trajectories.append(trajectory)
        versions.update(trajectory.policy_versions[trajectory.loss_mask].tolist())
    assert len(versions) == 1, f"an evaluation of one version was sampled by {sorted(versions)}"
    rewards = [trajectory.reward for trajectory in trajectories]
    return Accuracy(
        mean_reward=sum(rewards) / len(rewards),
        problems=len(problems),
        version=versions.pop(),
    )


async def evaluate_models(recipe: Recipe, models: Sequence[Path]) -> list[Accuracy]:
    """Start engines, and measure each of `models`, which have one shape, on the recipe's held-out problems.

    Raises:
        InputError, RunError: see arl.run.train.train; no process is left.
    """
    changes: dict[str, object] = {
        "mode": "collocated",  # engines have all devices
        "train": recipe.train.model_copy(update={"ranks": 1}),
        "rollout": recipe.rollout.model_copy(update={"lag": None}),  # nothing is trained
        "sync": Sync(),  # models are files
        "eval": recipe.eval.model_copy(update={"every": 0}),
    }
    recipe = recipe.model_copy(update=changes)
    plan = preflight(recipe)
    if not plan.held_out:
        raise InputError("eval.problems 0: nothing to evaluate on")
    logs = Path(tempfile.mkdtemp(prefix="arl-eval-"))
    async with (
        reported_failures(),
        make_launcher(recipe, logs) as launcher,
        explain_deaths(launcher),
        open_rewards(recipe, logs) as rewards,
    ):
        servers = EngineServers(
            recipe=recipe,
            versions=StartingVersions(str(models[0])),
            resources=plan.placement.engines,
            launcher=launcher,
            key=new_key(),
        )
        async with connect_engines(servers, await servers.start_all(), _say) as engine:
            accuracies = await _evaluate_each(recipe, plan, models, engine, rewards)
    shutil.rmtree(logs)  # after a failure they are kept, because the message names them
    return accuracies


def _say(line: str) -> None:
    print(line, file=sys.stderr)


async def _evaluate_each(
    recipe: Recipe,
    plan: Plan,
    models: Sequence[Path],
    engine: Engine,
    rewards: Rewards,
) -> list[Accuracy]:
    """Measure one model after the other; model i is version i to the engines, which begin with version 0."""
    codec = load_codec(str(models[0]))
    episodes = held_out_episodes(recipe, plan, engine, codec, rewards)
    accuracies = []
    for version, model in enumerate(models):
        if version > 0:
            async with deadline(recipe.deadlines.swap_and_restart, "controller", f"the engines to load {model}"):
                await engine.update_weights(WeightUpdate(version, str(model)))
        async with deadline(recipe.deadlines.step, "controller", f"the evaluation of {model}"):
            accuracy = await evaluate(episodes, plan.held_out, f"eval{version}")
        accuracies.append(accuracy)
    return accuracies
