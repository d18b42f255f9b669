"""An advantage is added from outside arl by `advantage: {kind: module:Class}`."""

from pathlib import Path

import pytest

from arl.errors import RecipeError
from arl.train.algorithms.advantage import Advantage
from arl.train.algorithms.trial import try_advantage
from tests.extending import my_advantage
from tests.extending.short_run import FIRST_SECTION, VARIED_REWARDS, ShortRun, step_records

MINE = "tests.extending.my_advantage"


def test_a_run_trains_with_an_advantage_that_differs_from_token_to_token(tmp_path: Path) -> None:
    run = ShortRun(tmp_path, VARIED_REWARDS, f"advantage.kind={MINE}:Growing", "advantage.discount=0.9")
    records = step_records(run.train())
    assert len(records) == 2
    for record in records:
        assert record["grad_norm"] > 0
        assert record["advantage/zero_fraction"] < 1.0


@pytest.mark.parametrize(
    ("sections", "rule"),
    [
        (f"advantage: {MINE}:WithoutPer", "lacks the attribute per; see arl/train/algorithms/advantage.py"),
        (f"advantage: {MINE}:WithValues", "it reads the column 'values', which nothing computes yet"),
        (
            f"advantage: {{kind: '{MINE}:Growing', discount: 2}}",
            "advantage.discount = 2: must be 1 or less",
        ),
        (
            f"advantage: {MINE}:Growing\nobjective: {{kind: gspo, clip_low: 3.0e-4, clip_high: 4.0e-4}}",
            "differs from token to token, and objective.kind gspo takes one advantage for a whole trajectory",
        ),
    ],
)
def test_what_can_never_work_is_refused_when_the_recipe_is_read(tmp_path: Path, sections: str, rule: str) -> None:
    with pytest.raises(RecipeError) as caught:
        ShortRun(tmp_path, sections=sections)
    assert f"recipe.yaml:{FIRST_SECTION}: " in str(caught.value)
    assert rule in str(caught.value)


@pytest.mark.parametrize(
    ("advantage", "rule"),
    [
        (my_advantage.OfTheWrongShape(), r"shape \(4,\), and it declares one number per token, which is \(6,\)"),
        (my_advantage.NotFinite(), "numbers that are not finite"),
    ],
)
def test_a_result_other_than_declared_is_refused_before_the_start(advantage: Advantage, rule: str) -> None:
    with pytest.raises(RecipeError, match=rule):
        try_advantage(advantage)
