"""Load the problems of a run: its own, and those of the suites that it is measured on."""

from collections.abc import Mapping

from arl.config.eval_section import HELD_OUT
from arl.config.recipe import Recipe
from arl.data.problems import ProblemSets, load_problems
from arl.data.text_codec import TextCodec
from arl.run.evaluation.suite import Suite, load_suite
from arl.types import Problem


def run_suites(recipe: Recipe) -> dict[str, Suite]:
    """Load the suites that eval.suites names, whole, without the recipe's own evaluation problems.

    Raises:
        RecipeError, DataError: see `load_suite`.
    """
    names = [name for name in recipe.eval.suites if name != HELD_OUT]
    return {name: load_suite(recipe, name, field="eval.suites") for name in names}


def run_problems(recipe: Recipe, suites: Mapping[str, Suite], codec: TextCodec) -> ProblemSets:
    """Load the recipe's own problems, filtered as it says.

    Args:
        suites: by name; none of their problems may be trained on.
        codec: counts the tokens of prompts.

    Raises:
        DataError: see arl.data.problems.load_problems.
    """

    def count_tokens(problem: Problem) -> int:
        return len(codec.encode_problem(problem))

    measured = {name: suite.problems for name, suite in suites.items()}
    return load_problems(recipe.data, recipe.seed, measured, count_tokens)
