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
