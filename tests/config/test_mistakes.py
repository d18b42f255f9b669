"""A wrong value is named with its field, its rule in plain words, and what was probably meant, each on one line."""

from pathlib import Path

import pytest

from arl.config.recipe_file import load_recipe
from arl.errors import RecipeError

GOOD = "model: {tiny: {}}\ndata: {task: running_checksum}\n"


@pytest.mark.parametrize(
    ("override", "rule"),
    [
        ("sync.transport=brodcast", "did you mean broadcast? give one of auto, file, memory, broadcast, ipc"),
        ('output.directory="a\\nb"', "must not hold line ends"),
        ("output.directory=''", "output.directory = '': must not be empty"),
        ("train.max_tokens=1", "unknown key; did you mean tokens or rollout.max_new_tokens or eval.max_new_tokens?"),
        ("train.learning_rate=.nan", "must be a finite number"),
        ("train.ranks=true", "train.ranks = True: must be a number, and not true or false"),
        ("data.task='a b:c'", "or your own as module:attribute"),
        ("eval.suites=gsm8k", "eval.suites = 'gsm8k': must be a list, as in [gsm8k]"),
        ("mode=Collocated", "mode = 'Collocated': did you mean collocated? give one of disaggregated, collocated"),
        ("train.lr=1", "train.lr: unknown key; did you mean learning_rate?"),
        ("train.ranks=0", "train.ranks = 0: must be greater than 0"),
        ("train.ranks=1.5", "train.ranks = 1.5: must be a valid integer"),
        ("rollout.staleness=-1", "rollout.staleness = -1: must be greater than or equal to 0"),
        ("train.compile=maybe", "train.compile = 'maybe': must be a valid boolean"),
        ("sync=3", "sync = 3: must be a section with fields"),
        ("name=a b", "name = 'a b': must match pattern"),
    ],
)
def test_a_wrong_value_is_one_line_in_our_own_words(tmp_path: Path, override: str, rule: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(GOOD)
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, [override])
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"--set {override}: ")
    assert rule in line
    assert "should" not in line
