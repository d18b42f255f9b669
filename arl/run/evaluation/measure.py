"""Measure one version on all suites that are evaluated during training."""

from collections.abc import Awaitable, Callable, Sequence

from arl.config.eval_section import HELD_OUT
from arl.config.recipe import Recipe
from arl.data.prompt_format import recipe_format
from arl.data.tokenizer import HuggingFaceCodec
from arl.engine.base import Engine
from arl.rollout.episodes import Rewards
from arl.run.evaluation.evaluate import episodes_at_once, evaluate_suite, suite_episodes
from arl.run.evaluation.suite import Suite, held_out_suite, open_suite
from arl.types import Accuracy, Problem

RewardsOf = Callable[[Suite], Awaitable[Rewards]]
"""Returns what scores the episodes of a suite: its own reward function, as it is."""


def measured_suites(recipe: Recipe, held_out: Sequence[Problem]) -> list[Suite]:
    """Open the suites that are measured during training; none without eval.every.

    Args:
        held_out: the recipe's own evaluation problems, as many as are used.

    Raises:
        RecipeError, DataError: see `open_suite`.
    """
    if not recipe.eval.every:
        return []
    suites = []
    for name in recipe.eval.suites:
        suites.append(held_out_suite(recipe, held_out) if name == HELD_OUT else open_suite(recipe, name))
    return suites


async def measure_suites(
    suites: Sequence[Suite],
    version: int,
    engine: Engine,
    codec: HuggingFaceCodec,
    rewards_of: RewardsOf,
    context: int,
    patience: float,
) -> list[Accuracy]:
    """Measure `version`, which the engine serves and keeps until this returns, on one suite after the other.

    Args:
        codec: of the model; each suite has its own prompt format.
        context: of the model, tokens.
        patience: seconds without any new token or score.

    Raises:
        DeadlineError, EngineError, RewardError: see `evaluate_suite`.
    """
    accuracies = []
    for suite in suites:
        prompts = codec.with_format(recipe_format(suite.recipe.data))
        rewards = await rewards_of(suite)
        score = await evaluate_suite(
            suite_episodes(suite, engine, prompts, rewards, context),
            suite,
            at_once=episodes_at_once(suite.recipe.engine),
            patience=patience,
        )
        assert score.version == version, f"version {version} was to be measured, and {score.version} was"
        accuracies.append(score.accuracy)
    return accuracies
