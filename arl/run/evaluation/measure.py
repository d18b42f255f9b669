"""Measure one version on all suites that are evaluated during training."""

from collections.abc import Mapping, Sequence

from arl.config.eval_section import HELD_OUT
from arl.config.recipe import Recipe
from arl.data.prompt_format import recipe_format
from arl.data.tokenizer import HuggingFaceCodec
from arl.engine.base import Engine
from arl.run.evaluation.evaluate import episodes_at_once, evaluate_suite, suite_episodes
from arl.run.evaluation.suite import Suite
from arl.run.rewards import Scorers, evaluation_scorer
from arl.types import Accuracy


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
        score = await evaluate_suite(
            suite_episodes(suite, engine, prompts, scorer, context),
            suite,
            at_once=episodes_at_once(suite.recipe.engine),
            patience=patience,
        )
        assert score.version == version, f"version {version} was to be measured, and {score.version} was"
        accuracies.append(score.accuracy)
    return accuracies
