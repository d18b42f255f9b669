"""Sampled accuracy on held-out problems: of the version a run's engines serve, or of models on disk."""

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
    """Of the recipe's groups."""
    env = import_function(env_name(recipe), "rollout.env")
    return Episodes(engine, codec, rewards, env, recipe.rollout, recipe.seed, plan.max_length)


def held_out_episodes(recipe: Recipe, plan: Plan, engine: Engine, codec: TextCodec, rewards: Rewards) -> Episodes:
    """Of one episode per problem, at the evaluation's temperature."""
    alone = {"group_size": 1, "temperature": recipe.eval.temperature}
    recipe = recipe.model_copy(update={"rollout": recipe.rollout.model_copy(update=alone)})
    return make_episodes(recipe, plan, engine, codec, rewards)


async def evaluate(episodes: Episodes, problems: Sequence[Problem], name: str) -> Accuracy:
    """All problems open at once; no weights may be published meanwhile."""
    async with asyncio.TaskGroup() as tasks:
        runs = [
            tasks.create_task(episodes.run(problem, episodes.open(f"{name}.{i}", problem)))
            for i, problem in enumerate(problems)
        ]
    trajectories = [run.result()[0] for run in runs]
    versions = {int(v) for t in trajectories for v in t.policy_versions[t.loss_mask]}
    assert len(versions) == 1, f"an evaluation of one version was sampled by {sorted(versions)}"
    mean = sum(t.reward for t in trajectories) / len(trajectories)
    return Accuracy(mean, len(trajectories), versions.pop())


async def evaluate_models(recipe: Recipe, models: Sequence[Path]) -> list[Accuracy]:
    """Accuracy of each of `models`, all of one shape, on the recipe's held-out problems, on engines of its own.

    Raises:
        ArlError: as `train`; nothing is left behind.
    """
    alone: dict[str, object] = {
        "mode": "collocated",  # engines have it all
        "train": recipe.train.model_copy(update={"ranks": 1}),
        "rollout": recipe.rollout.model_copy(update={"lag": None}),  # nothing is trained; a trace is of another model
        "sync": Sync(),  # models are files
    }
    recipe = recipe.model_copy(update=alone)
    plan, key = preflight(recipe), new_key()
    if not plan.held_out:
        raise InputError("eval.problems 0: nothing to evaluate on")
    logs = Path(tempfile.mkdtemp(prefix="arl-eval-"))
    async with (
        reported_failures(),
        make_launcher(recipe, logs) as launcher,
        explain_deaths(launcher),
        open_rewards(recipe, logs) as rewards,
    ):
        servers = EngineServers(recipe, StartingVersions(str(models[0])), plan.placement.engines, launcher, key)
        async with connect_engines(servers, await servers.start_all(), _say) as engine:
            accuracies = await _evaluate_each(recipe, plan, models, engine, rewards)
    shutil.rmtree(logs)  # kept where something failed: the message names them
    return accuracies


def _say(line: str) -> None:
    print(line, file=sys.stderr)


async def _evaluate_each(
    recipe: Recipe, plan: Plan, models: Sequence[Path], engine: Engine, rewards: Rewards
) -> list[Accuracy]:
    episodes = held_out_episodes(recipe, plan, engine, load_codec(str(models[0])), rewards)
    accuracies = []
    for version, model in enumerate(models):
        if version:
            await engine.update_weights(WeightUpdate(version, str(model)))
        async with deadline(recipe.deadlines.step, "controller", f"the evaluation of {model}"):
            accuracies.append(await evaluate(episodes, plan.held_out, f"eval{version}"))
    return accuracies
