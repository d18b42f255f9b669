"""Values that no run can have are refused, and the command ends with its documented exit codes."""

from pathlib import Path

import pytest

from arl.config.recipe_file import load_recipe
from arl.errors import RecipeError

GOOD = "model: {tiny: {}}\ndata: {task: running_checksum, options: {size: 300}}\n"


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(GOOD)
    return path


@pytest.mark.parametrize(
    ("override", "rule"),
    [
        ('output.directory="a\\nb"', "must not hold line ends"),
        ("output.directory=''", "--set output.directory='': output.directory = '': must not be empty"),
        ("train.weight_decay=1e9", r"train.weight_decay 1e\+09: .* must be more than 0; give less than 1e\+06"),
        ("train.learning_rate=.nan", "must be a finite number"),
        ("train.ranks=true", r"train.ranks = True: must be a number, and not true or false"),
        ("data.task='a b:c'", "or your own as module:attribute"),
    ],
)
def test_a_value_that_no_run_can_have_is_refused(recipe_file: Path, override: str, rule: str) -> None:
    with pytest.raises(RecipeError, match=rule):
        load_recipe(recipe_file, [override])


def test_a_module_that_ends_the_process_when_it_is_imported_is_refused(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "script_of_a_user.py").write_text("raise SystemExit('usage: script')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RecipeError, match=r"cannot import script_of_a_user \(usage: script\)"):
        load_recipe(recipe_file, ["data.task=script_of_a_user:Task"])
