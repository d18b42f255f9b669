"""A list in `data` mixes several sources; a mistake in one of them is reported with its line and its number."""

from pathlib import Path

import pytest

from arl.config.recipe import Recipe
from arl.config.recipe_file import dump_recipe, load_recipe
from arl.errors import RecipeError

MIXED = """\
model: {tiny: {}}
data:
  - {task: running_checksum, weight: 2}
  - task: long_tail
    name: tail
    options: {size: 100}
    curriculum: 3
"""


def load(directory: Path, text: str = MIXED, *overrides: str) -> Recipe:
    file = directory / "recipe.yaml"
    file.write_text(text)
    return load_recipe(file, overrides)


def test_each_source_is_a_recipe_of_its_own_and_the_mixture_is_written_as_it_is_read(tmp_path: Path) -> None:
    recipe = load(tmp_path, MIXED, "data.1.options.size=200", "data.1.weight=3")
    assert {name: source.data.task for name, source in recipe.sources.items()} == {
        "running_checksum": "running_checksum",
        "tail": "long_tail",
    }
    assert recipe.weights == {"running_checksum": 2.0, "tail": 3.0}
    assert recipe.sources["tail"].data.options == {"size": 200}
    assert load(tmp_path, dump_recipe(recipe)) == recipe
    for source in recipe.sources.values():
        assert load(tmp_path, dump_recipe(source)).sources == {"": source}


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ("weight: 2", "weight: 0", "3: data.0.weight = 0: must be greater than 0"),
        ("name: tail", "nam: tail", "5: data.1.nam: unknown key; did you mean name?"),
        ("name: tail", "name: a/b", "5: data.1.name = 'a/b': "),
        ("name: tail", "name: running_checksum", "3: data.0.name 'running_checksum': is not the name of this source"),
        ("size: 100", "sise: 100", "6: data.1.options.sise: unknown key; did you mean size?"),
        ("curriculum: 3", "curriculum: 0", "7: data.1.curriculum = 0: must be greater than 0"),
        ("    options", "    path: x.jsonl\n    options", "4: data.1: give exactly one of data.task and data.path"),
    ],
)
def test_a_mistake_in_one_source_is_refused_with_its_line_and_number(
    tmp_path: Path, before: str, after: str, complaint: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        load(tmp_path, MIXED.replace(before, after))
    assert str(caught.value).startswith(f"{tmp_path / 'recipe.yaml'}:{complaint}")


def test_what_only_a_mixture_reads_is_refused_with_one_source(tmp_path: Path) -> None:
    for field in ("weight: 2", "name: sums"):
        with pytest.raises(RecipeError, match="only with several sources; leave it out"):
            load(tmp_path, f"model: {{tiny: {{}}}}\ndata: [{{task: running_checksum, {field}}}]\n")
    with pytest.raises(RecipeError, match=r"--set data\.task=gsm8k: data is a value, not a section"):
        load(tmp_path, MIXED, "data.task=gsm8k")
