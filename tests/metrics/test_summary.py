"""The page at the end of a run says what happened."""

from arl.config.recipe import Recipe
from arl.metrics.audit import Moments, Population, Selection
from arl.metrics.summary import Summary, render


def page(selection: Selection) -> str:
    recipe = Recipe.model_validate({"model": {"path": "m"}, "data": {"path": "d"}})
    summary = Summary(
        directory="runs/r",
        accuracy_before=None,
        accuracy_after=None,
        eval_problems=0,
        seconds=2.0,
        training_seconds=1.0,
        steps=1,
        tokens_trained=10,
        tokens_generated=10,
        token_ages={0: 10},
        trajectories_spanning_versions=0,
        groups={"trained": 1},
        selection=selection,
        selection_bias=selection.warnings(),
        idle_trainer=0.0,
        idle_engine=0.0,
        weights_sha256="0",
    )
    return render(summary, recipe, [])


def test_the_filters_effect_is_shown_as_intended_and_without_a_warning() -> None:
    def population(mean: float) -> Population:
        return Population(50, Moments(50, mean, 1.0), Moments(50, mean, 1.0))

    intended = page(Selection(population(10), population(5), rejected=population(15)))
    assert "by rollout.filter or the env, as intended" in intended
    assert "warning" not in intended
    biased = page(Selection(population(10), population(5), dropped=population(15)))
    assert "warning: mean length differs: trained 5, dropped 15" in biased
