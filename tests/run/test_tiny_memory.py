"""A model.tiny that no memory holds is refused by arithmetic, before it is made."""

from pathlib import Path

import pytest

from arl.config.recipe import TinyModel
from arl.config.recipe_file import load_recipe
from arl.data.model_limits import Limits
from arl.errors import InputError
from arl.models.load import empty_model
from arl.models.tiny import make_tiny_model
from arl.run.engine_memory import count_parameters, refuse_overfull_tiny
from arl.run.preflight import preflight
from tests.forks import ROOT

QUICKSTART = ROOT / "recipes/quickstart-virtual.yaml"
RESOLVED = ["engine.dtype=float32", "train.dtype=float32"]


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.tiny.hidden_size=65536", "model.tiny.layers=1000"],
        ["model.tiny.layers=100000000"],
        ["model.tiny.intermediate_size=1000000000"],
        ["engine.slots=100000", "engine.replicas=1000"],
    ],
)
def test_a_tiny_model_that_no_memory_holds_is_refused_before_the_run(overrides: list[str]) -> None:
    recipe = load_recipe(QUICKSTART, overrides)
    with pytest.raises(InputError, match=r"memory: the run takes [\d.]+ GB or more, and [\d.]+ GB are free: .* lower"):
        preflight(recipe)


def test_only_what_is_certainly_too_large_is_refused() -> None:
    recipe = load_recipe(QUICKSTART, [*RESOLVED, "engine.replicas=2", "engine.slots=4"])
    assert recipe.model.tiny is not None
    limits = Limits(vocab_size=20, context=512)
    caches = 2 * 4 * 128 * (2 * 4 * 2 * 128)  # engines, slots, tokens, and bytes of a token
    least = (16 + 2 * 4) * count_parameters(recipe.model.tiny, 20) + caches
    refuse_overfull_tiny(recipe, limits, longest=74, available=least)
    refuse_overfull_tiny(recipe, limits, longest=74, available=None)
    with pytest.raises(InputError, match=r"for engine\.slots 4 of 128 tokens"):
        refuse_overfull_tiny(recipe, limits, longest=74, available=least - 1)


def test_the_parameters_of_a_tiny_model_are_counted_without_it(tmp_path: Path) -> None:
    tiny = TinyModel(hidden_size=16, layers=3, heads=2, intermediate_size=40)
    make_tiny_model(tiny, "abc", 0, tmp_path)
    model = empty_model(tmp_path)
    assert count_parameters(tiny, model.config.vocab_size) == model.num_parameters()
