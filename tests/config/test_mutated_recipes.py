"""A recipe with a mistake in it, whatever it is, is refused with its place, or it loads and loads again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arl.config.recipe_file import dump_recipe, load_recipe
from arl.errors import RecipeError
from tests.forks import ROOT

RECIPES = [path.read_text() for path in sorted((ROOT / "recipes").glob("*.yaml"))]
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=6) | st.sampled_from(
    ["-1", "yes", "*a"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
Mutate = Callable[[st.DataObject, dict[str, Any]], object]


def replaced(data: st.DataObject, section: dict[str, Any]) -> None:
    section[data.draw(st.sampled_from(sorted(section)))] = data.draw(VALUES)


def misspelled(data: st.DataObject, section: dict[str, Any]) -> None:
    name = data.draw(st.sampled_from(sorted(section)))
    section[name + data.draw(st.sampled_from("xs_"))] = section.pop(name)


def lost(data: st.DataObject, section: dict[str, Any]) -> None:
    del section[data.draw(st.sampled_from(sorted(section)))]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recipes") / "recipe.yaml"


def loads_or_is_refused(file: Path, text: str) -> None:
    file.write_text(text)
    try:
        recipe = load_recipe(file)
    except RecipeError as refused:
        for line in str(refused).splitlines():
            assert line.startswith((f"{file}:", "…", " ")), line
        return
    file.write_text(dump_recipe(recipe))
    assert load_recipe(file) == recipe


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data(), st.sampled_from(RECIPES))
def test_a_recipe_with_other_values_names_or_gaps(file: Path, data: st.DataObject, text: str) -> None:
    tree = yaml.safe_load(text)
    sections = [tree, *(section for section in tree.values() if isinstance(section, dict) and section)]
    mutate: Mutate = data.draw(st.sampled_from([replaced, misspelled, lost]))
    mutate(data, data.draw(st.sampled_from(sections)))
    loads_or_is_refused(file, yaml.safe_dump(tree, allow_unicode=True))
