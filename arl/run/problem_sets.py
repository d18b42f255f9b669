"""Load the problems of a run: its own, and those of the suites that it is measured on."""

from arl.config.eval_section import HELD_OUT
from arl.config.recipe import Recipe
from arl.data.problems import ProblemSets, load_problems
from arl.run.starting_model import starting_codec
from arl.types import Problem


def run_problems(recipe: Recipe) -> ProblemSets:
    """Load all problems of a run, filtered as its recipe says.

    Raises:
        InputError: as arl.data.problems.load_problems; with data.max_prompt_tokens also if there is no tokenizer.
    """
    count_tokens = None
    if recipe.data.max_prompt_tokens is not None:
        codec = starting_codec(recipe)

        def count_tokens(problem: Problem) -> int:
            return len(codec.encode_problem(problem))

    suites = [name for name in recipe.eval.suites if name != HELD_OUT]
    return load_problems(recipe.data, recipe.seed, suites, count_tokens)
