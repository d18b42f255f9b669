"""Measure one version: on the recipe's own evaluation problems, or on all suites that are evaluated during training."""

from collections.abc import Mapping, Sequence

from arl.config.eval_section import HELD_OUT
from arl.config.recipe import Recipe
from arl.data.prompt_format import recipe_format
from arl.data.text_codec import TextCodec
from arl.data.tokenizer import HuggingFaceCodec
from arl.engine.base import Engine
from arl.rollout.episodes import Rewards
from arl.run.evaluation.evaluate import episodes_at_once, evaluate_suite, suite_episodes
from arl.run.evaluation.suite import Suite, held_out_suite
from arl.run.rewards import Scorers, evaluation_scorer
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
    """Measure `version` on the recipe's own evaluation problems, as a run does before and after training.

    Args:
        problems: as many as are used.
        version: the engine serves it, and keeps it until this returns.
        context: of the model, tokens.

    Raises:
        DeadlineError, EngineError, RewardError: see `evaluate_suite`.
    """
    suite = held_out_suite(recipe, problems)
    return await _measure(suite, version, engine, codec, rewards, context, recipe.deadlines.step)


def measured_suites(recipe: Recipe, held_out: Suite, suites: Mapping[str, Suite]) -> list[Suite]:
    """Return the suites that are measured during training, with as many problems as are used; none without eval.every.

    Args:
        held_out: the recipe's own.
        suites: the others that eval.suites names, by name.
    """
    if not recipe.eval.every:
        return []
    opened = {**suites, HELD_OUT: held_out}
    return [opened[name].shortened() for name in recipe.eval.suites]


async def measure_suites(
    suites: Sequence[Suite],
    version: int,
    engine: Engine,
    codec: HuggingFaceCodec,
    rewards: Scorers,
    context: int,
    patience: float,
) -> list[Accuracy]:
    """Measure `version`, which the engine serves and keeps until this returns, on one suite after the other.

    Args:
        codec: of the model; each suite has its own prompt format.
        rewards: makes scorers of the suites' reward functions, which it was opened with.
        context: of the model, tokens.
        patience: seconds without any new token or score.

    Raises:
        DeadlineError, EngineError, RewardError: see `evaluate_suite`.
    """
    accuracies = []
    for suite in suites:
        prompts = codec.with_format(recipe_format(suite.recipe.data))
        scorer = evaluation_scorer(suite.recipe, rewards)
        accuracy = await _measure(suite, version, engine, prompts, scorer, context, patience)
        accuracies.append(accuracy)
    return accuracies


async def _measure(
    suite: Suite,
    version: int,
    engine: Engine,
    codec: TextCodec,
    rewards: Rewards,
    context: int,
    patience: float,
) -> Accuracy:
    score = await evaluate_suite(
        suite_episodes(suite, engine, codec, rewards, context),
        suite,
        at_once=episodes_at_once(suite.recipe.engine),
        patience=patience,
    )
    assert score.version == version, f"version {version} was to be measured, and {score.version} was"
    return score.accuracy
