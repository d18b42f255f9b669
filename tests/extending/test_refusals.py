"""A part of a user's own that lacks something is refused before the start, with its name and an example."""

from pathlib import Path

import pytest

from arl.errors import ArlError, RecipeError
from arl.train.algorithms.trial import try_advantage, try_objective
from tests.extending import my_advantage, my_objective
from tests.extending.short_run import FIRST_SECTION, ShortRun

HERE = "tests.extending"


@pytest.mark.parametrize(
    ("setting", "rule"),
    [
        (f"data.task={HERE}.my_task:NoProblems", "lacks the method problems(split, seed); see arl/tasks/"),
        (f"rollout.env={HERE}.my_env:not_async", "must be async: write `async def not_async(problem, session)`"),
        (f"reward.function={HERE}.my_reward:without_response", "cannot be called as without_response(problem, respon"),
        (f"engine.kind={HERE}.my_backend:WrongCommand", "cannot be called as command(server)"),
        (f"launcher={HERE}.my_launcher:WithAnotherStart", "cannot be called as start(role, command, resources"),
        (f"output.trackers=[{HERE}.my_tracker:HalfTracker]", "lacks the method close(); see "),
    ],
)
def test_a_part_without_what_it_needs_starts_nothing(tmp_path: Path, setting: str, rule: str) -> None:
    with pytest.raises(ArlError) as caught:
        ShortRun(tmp_path, setting).train()
    assert rule in str(caught.value)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("sections", "rule"),
    [
        (f"objective: {HERE}.my_objective:WithoutScope", "lacks the attribute scope; see arl/train/algorithms/ppo.py"),
        (f"objective: {HERE}.my_objective:WithReference", "column 'reference_logprobs'; say in objective.reference"),
        (f"objective: {HERE}.my_objective:Reinforced", "has no attribute Reinforced; did you mean Reinforce?"),
        (f"advantage: {HERE}.my_advantage:WithoutPer", "lacks the attribute per; see arl/train/algorithms/advantage"),
        (
            f"advantage: {{kind: '{HERE}.my_advantage:Growing', discount: 2}}",
            "discount = 2: must be less than or equal to 1",
        ),
        (
            f"advantage: {HERE}.my_advantage:Growing\nobjective: {{kind: gspo, clip_low: 3.0e-4, clip_high: 4.0e-4}}",
            "differs from token to token, and objective.kind gspo takes one advantage for a whole trajectory",
        ),
    ],
)
def test_what_can_never_work_is_refused_when_the_recipe_is_read(tmp_path: Path, sections: str, rule: str) -> None:
    with pytest.raises(RecipeError) as caught:
        ShortRun(tmp_path, sections=sections)
    assert f"recipe.yaml:{FIRST_SECTION}: " in str(caught.value)
    assert rule in str(caught.value)


def test_results_other_than_declared_are_refused_before_the_start() -> None:
    with pytest.raises(RecipeError, match=r"the values \['objective/forfeit'\], and `metrics` declares"):
        try_objective(my_objective.LogsAnotherName())
    with pytest.raises(RecipeError, match=r"shape \(4,\), and it declares one number per token, which is \(6,\)"):
        try_advantage(my_advantage.OfTheWrongShape())
