"""Measure a version on the recipe's own evaluation problems, as a run does before and after training."""

from collections.abc import Sequence

from arl.config.recipe import Recipe
from arl.data.text_codec import TextCodec
from arl.engine.base import Engine
from arl.rollout.episodes import Rewards
from arl.run.evaluation.evaluate import episodes_at_once, evaluate_suite, suite_episodes
from arl.run.evaluation.suite import held_out_suite
from arl.types import Accuracy, Problem


async def measure_held_out(
    recipe: Recipe,
    problems: Sequence[Problem],
    version: int,
    engine: Engine,
    codec: TextCodec,
    rewards: Rewards,
    context: int,
) -> Accuracy:
    """Measure `version`, which the engine serves and keeps until this returns.

    Args:
        context: of the model, tokens.

    Raises:
        DeadlineError, EngineError, RewardError: see arl.run.evaluation.evaluate.
    """
    suite = held_out_suite(recipe, problems)
    score = await evaluate_suite(
        suite_episodes(suite, engine, codec, rewards, context),
        suite,
        at_once=episodes_at_once(recipe.engine),
        patience=recipe.deadlines.step,
    )
    assert score.version == version, f"version {version} was to be measured, and {score.version} was"
    return score.accuracy
