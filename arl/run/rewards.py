"""Find the reward function of a recipe and open its worker pool."""

from pathlib import Path

from arl.config.recipe import Recipe
from arl.errors import InputError
from arl.reward.pool import RewardPool
from arl.tasks.registry import task_part


def reward_name(recipe: Recipe) -> str:
    """Return `module:function` of the recipe's reward: its own, or the task's.

    Raises:
        InputError: neither names one.
    """
    if recipe.reward.function is not None:
        return recipe.reward.function
    if recipe.data.task is None:
        raise InputError("reward.function: required with data.path; name a module:function")
    return task_part(recipe.data.task, "reward")


def open_rewards(recipe: Recipe, directory: Path) -> RewardPool:
    """Make the pool of reward workers, which start when it is entered; they log to `directory`/reward.log."""
    return RewardPool(
        reward_name(recipe),
        workers=recipe.reward.workers,
        timeout=recipe.deadlines.reward,
        startup=recipe.deadlines.startup,
        log=directory / "reward.log",
        environment=recipe.reward.environment,
    )
