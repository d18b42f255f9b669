"""Find the reward functions of a recipe, and open what calls them: worker processes, or this process in virtual time.

recipe ─► open_rewards, inline_rewards ─► training_scorer, evaluation_scorer ─► Episodes
"""

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from arl.config.imports import import_function
from arl.config.recipe import Recipe
from arl.data.problems import AnswerCheck
from arl.errors import InputError, printable
from arl.reward.pool import RewardPool
from arl.reward.scorer import InlineRewards, OnError, Scorer, UngradedLog
from arl.reward.worker import Settings
from arl.tasks.registry import task_class, task_part

LOG = "reward.log"


def reward_name(recipe: Recipe) -> str:
    """Return `module:function` of the reward of a recipe with one source: its own, or the task's.

    Raises:
        InputError: neither names one.
    """
    if recipe.reward.function is not None:
        return recipe.reward.function
    if recipe.data.task is None:
        raise InputError("reward.function: required with data.path; name a module:function")
    return task_part(recipe.data.task, "reward")


def reward_names(recipe: Recipe) -> tuple[str, ...]:
    """Return `module:function` of the rewards of all sources.

    Raises:
        InputError: see reward_name.
    """
    return tuple(dict.fromkeys(map(reward_name, recipe.sources.values())))


def reward_sha256(recipe: Recipe) -> str:
    """Hash the files of the rewards' modules, and of those that the recipe names, which may only import them."""
    names: list[str] = []
    for name in reward_names(recipe):
        function = import_function(name, "reward.function")
        names += (name.partition(":")[0], getattr(function, "__module__", ""))
    files = [Path(getattr(sys.modules.get(module), "__file__", None) or "") for module in names]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files if file.is_file())).hexdigest()


def reward_weights(recipe: Recipe) -> Mapping[str, float]:
    """Return the weights of the reward's named parts: the recipe's, or the task's where its own function scores.

    A function may have weights of its own, `score.weights`; those of the recipe win over them, part by part.
    """
    own: dict[str, float] = getattr(import_function(reward_name(recipe), "reward.function"), "weights", {})
    if recipe.reward.weights is not None:
        return {**own, **recipe.reward.weights}
    if recipe.reward.function is None and recipe.data.task is not None:
        return {**own, **task_class(recipe.data.task).reward_weights}
    return own


def answer_check(recipe: Recipe) -> AnswerCheck | None:
    """Return the `unusable` of the reward function; None: it has none."""
    unusable = getattr(import_function(reward_name(recipe), "reward.function"), "unusable", None)
    if unusable is None:
        return None

    def check(answer: str) -> str:
        try:
            return unusable(answer) or ""
        except Exception as error:  # a run does not end for the failure of a check
            return f"its check failed ({printable(repr(error))})"

    return check


def open_rewards(recipe: Recipe, directory: Path, note: Callable[[str], None]) -> RewardPool:
    """Make the pool of reward workers, which start when it is entered; they log to `directory`/reward.log.

    Args:
        note: shows a line on the console.
    """
    reward = recipe.reward
    log = directory / LOG
    names = reward_names(recipe)
    needed = [getattr(import_function(name, "reward.function"), "seconds", 0.0) for name in names]
    settings = Settings(
        functions=names,
        workers=reward.workers,
        timeout=max(recipe.deadlines.reward, *needed),
        memory_gb=reward.memory_gb,
        sandbox=recipe.sandbox.model_dump(mode="json"),
    )
    return RewardPool(
        settings,
        startup=recipe.deadlines.startup,
        log=log,
        environment=reward.environment,
        ungraded=UngradedLog(log, note),
    )


def inline_rewards(
    recipe: Recipe, directory: Path, note: Callable[[str], None], others: Sequence[str] = ()
) -> InlineRewards:
    """Call the same functions, and `others`, in this process; see `open_rewards`."""
    names = [*reward_names(recipe), *others]
    functions = {name: import_function(name, "reward.function") for name in names}
    return InlineRewards(functions, UngradedLog(directory / LOG, note))


def training_scorer(recipe: Recipe, rewards: RewardPool | InlineRewards) -> Scorer:
    """Return the scorer of training episodes of a recipe with one source."""
    return Scorer(rewards, reward_name(recipe), reward_weights(recipe), recipe.reward.on_error)


def evaluation_scorer(recipe: Recipe, rewards: RewardPool | InlineRewards) -> Scorer:
    """Return the scorer of an evaluation by the recipe's own function.

    With reward.on_error drop an episode without a grade counts 0, because an evaluation has every problem in its mean.
    """
    on_error: OnError = "zero" if recipe.reward.on_error == "drop" else recipe.reward.on_error
    return Scorer(rewards, reward_name(recipe), reward_weights(recipe), on_error)
