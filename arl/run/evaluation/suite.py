"""Open suites: sets of problems to evaluate on, each with what scores it and how it is sampled.

    recipe ─► held_out: the recipe's own evaluation problems ──┐    of several sources: held_out/SOURCE each
          └─► NAME: the evaluation split of task NAME, ────────┴─► Suite: problems, reward, env, sampling
              under the recipe's model and engine

Every suite has a recipe of its own, which differs from the given one in `data`, `reward`, `rollout.env` and `eval`.
"""

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msgspec import structs

from arl.config.data_section import task_evaluation
from arl.config.recipe import Recipe
from arl.config.recipe_file import make_recipe
from arl.config.rollout_section import TOOL_LIMITS
from arl.config.scoring_sections import HELD_OUT, Eval
from arl.data.model_limits import Limits
from arl.data.problems import (
    ProblemSets,
    as_candidates,
    check_answers,
    filtered,
    load_problems,
    read_sides,
)
from arl.data.prompt_format import PromptFormat
from arl.data.tokenizer import HuggingFaceCodec
from arl.errors import DataError
from arl.run.prompt_lengths import fitting_prompts
from arl.run.rewards import answer_check
from arl.sandbox.current import configure
from arl.tasks.registry import open_task, task_class
from arl.types import Problem, Response

SUITE_SEED = 0  # a suite has the same problems under every seed of sampling


@dataclass(frozen=True)
class Suite:
    """Hold the problems of one suite, and the recipe by which they are answered and scored."""

    name: str
    recipe: Recipe
    problems: tuple[Problem, ...]

    @property
    def num_episodes(self) -> int:
        """Return how many episodes it has: `eval.samples` of each problem."""
        return len(self.problems) * self.recipe.eval.samples

    @property
    def max_new_tokens(self) -> int:
        """Return the token budget of one episode."""
        return self.recipe.eval.max_new_tokens or self.recipe.rollout.max_new_tokens

    @functools.cached_property
    def extract(self) -> Callable[[Response], str]:
        """Return the function that finds the answer in a response, by which votes are counted."""
        task = self.recipe.data.task
        extract = None if task is None else task_class(task).extract
        return extract or (lambda response: response.text.strip())

    def shortened(self) -> "Suite":
        """Return the suite with its first problems, at most as many as eval.problems allows."""
        return replace(self, problems=self.problems[: self.recipe.eval.problems])

    def check_prompts(self, codec: HuggingFaceCodec, limits: Limits) -> list[str]:
        """Check that the model can hold each prompt with a full answer, and that answers can be matched.

        Args:
            codec: makes the prompts of this suite.

        Returns:
            What a user should know of them.
        """
        rows = as_candidates(self.problems, f"a problem of {self.name}")
        notes: list[str] = []
        if unusable := answer_check(self.recipe):
            notes += check_answers(rows, self.recipe.data, unusable)
        fitting_prompts(self.recipe, codec, limits, rows, notes, self.name)
        return notes + codec.prompts.notes()

    def keys(self) -> list[str]:
        """Return a name for each problem: its id, and a number behind it where a problem occurs again."""
        seen: Counter[str] = Counter()
        keys = []
        for problem in self.problems:
            seen[problem.id] += 1
            number = seen[problem.id]
            keys.append(problem.id if number == 1 else f"{problem.id}-{number}")
        return keys


def held_out_name(source: str) -> str:
    """Return the name of the suite of a source's own evaluation problems."""
    return f"{HELD_OUT}/{source}" if source else HELD_OUT


def held_out_suites(recipe: Recipe, problems: Sequence[Problem]) -> list[Suite]:
    """Make the suite of each source's own evaluation problems, which are loaded already."""
    return [
        Suite(held_out_name(name), source, tuple(problem for problem in problems if problem.source == name))
        for name, source in recipe.sources.items()
    ]


def load_suites(recipe: Recipe, name: str, settings: Mapping[str, Any] = {}, field: str = "suite") -> list[Suite]:
    """Open a suite as `load_suite` does; of `held_out`, one of each source."""
    if name != HELD_OUT:
        return [load_suite(recipe, name, settings, field)]
    return [
        replace(load_suite(each, name, settings, field), name=held_out_name(source))
        for source, each in recipe.sources.items()
    ]


def load_suite(recipe: Recipe, name: str, settings: Mapping[str, Any] = {}, field: str = "suite") -> Suite:
    """Open a suite with all of its problems.

    Sampling is what `settings` say, else what differs from the defaults in the recipe's section `eval`, else what the
    suite's task declares.

    Args:
        recipe: with several sources, `name` is a task.
        name: `held_out`, or a task, built in or as `module:attribute`.
        settings: fields of the section `eval` that win over those of the recipe and of the task.
        field: where it was named, for messages.

    Raises:
        RecipeError: there is no such task, or the settings are impossible.
        DataError: the suite has no problem.
    """
    chosen = _chosen(recipe)
    sources = list(recipe.sources.values())
    recipe = next((source for source in sources if source.data.task == name), sources[0])
    values = recipe.model_dump()
    if name == HELD_OUT:
        values["eval"] |= settings
    else:
        task_class(name, field)
        left_out = () if recipe.data.suffix else {"suffix"}  # else the task brings one
        kept = set(PromptFormat.__struct_fields__).difference(left_out)
        options = recipe.data.options if recipe.data.task == name else {}
        values["data"] = recipe.data.model_dump(include=kept) | {"task": name, "options": options}
        values["reward"] |= {"function": None, "weights": None}
        of_recipe = ("env", "agent", "tools", *TOOL_LIMITS)
        values["rollout"] = {field: value for field, value in values["rollout"].items() if field not in of_recipe}
        values["eval"] = {**task_evaluation(name), **chosen, **settings}
    own = make_recipe(values, (), Path(f"{field} {name}"))
    configure(own.sandbox)  # a task may check its problems
    if own.data.task is None:
        problems = load_problems(own.data, own.seed).held_out
    else:
        seed = own.seed if name == HELD_OUT else SUITE_SEED
        problems = list(open_task(own.data).problems("evaluation", seed))
    if not problems:
        raise DataError(f"{field} {name}: has no evaluation problem; name another one, or hold out more")
    return Suite(name, own, tuple(problems))


def _chosen(recipe: Recipe) -> dict[str, Any]:
    """Return the fields of `eval` that differ from the defaults and from those of the recipe's own, only task."""
    own = {} if recipe.data.task is None or recipe.mixture else task_evaluation(recipe.data.task)
    usual = Eval().model_dump() | own
    given = recipe.eval.model_dump()
    return {field: value for field, value in given.items() if value != usual[field]}


def run_problems(
    recipe: Recipe, suites: Mapping[str, Suite], codecs: Mapping[str, HuggingFaceCodec], limits: Limits
) -> ProblemSets:
    """Load the recipe's own problems, filtered as it says, and measure their prompts.

    No source trains on what another one holds out.

    Args:
        suites: by name; none of their problems may be trained on.
        codecs: make the prompts of each source.

    Raises:
        DataError: none of a source is held out; or see arl.data.problems.filtered.
        InputError: see fitting_prompts.
    """
    measured = {f"the suite {name}": as_candidates(suite.problems, name) for name, suite in suites.items()}
    configure(recipe.sandbox)  # a task may check its problems
    sides = {name: read_sides(source.data, source.seed) for name, source in recipe.sources.items()}
    training: list[Problem] = []
    held_out: list[Problem] = []
    notes: list[str] = []
    longest = 0
    for name, source in recipe.sources.items():
        others = {f"the evaluation of {other}": side.held_out for other, side in sides.items() if other != name}
        fitting = functools.partial(fitting_prompts, source, codecs[name], limits)
        try:
            sets = filtered(source.data, sides[name], measured | others, fitting, answer_check(source))
            if recipe.eval.problems and not sets.held_out:
                raise DataError(
                    f"eval.problems {recipe.eval.problems}: no problem is held out; hold out more (data.eval_fraction, "
                    "or the task's options), or set eval.problems to 0"
                )
        except DataError as error:
            raise DataError(f"source {name}: {error}" if name else str(error)) from error
        training += [structs.replace(problem, source=name) for problem in sets.training]
        held_out += [structs.replace(problem, source=name) for problem in sets.held_out]
        notes += [f"{name}: {note}" if name else note for note in sets.notes]
        longest = max(longest, sets.longest)
    return ProblemSets(training, held_out, longest, tuple(notes))
