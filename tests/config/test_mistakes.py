"""A wrong value is named with its field, its rule in plain words, and what was probably meant, each on one line."""

from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from arl.config.mistakes import find_mistakes
from arl.config.recipe_file import load_recipe
from arl.errors import RecipeError

GOOD = "model: {tiny: {}}\ndata: {task: running_checksum}\n"


@pytest.mark.parametrize(
    ("override", "rule"),
    [
        ("sync.transport=nccl", "sync.transport = 'nccl': give one of auto, file, memory, broadcast, ipc"),
        ("sync.transport=brodcast", "did you mean broadcast? give one of auto, file, memory, broadcast, ipc"),
        ("mode=Collocated", "mode = 'Collocated': did you mean collocated? give one of disaggregated, collocated"),
        ("train.lr=1", "train.lr: unknown key; did you mean learning_rate?"),
        ("train.ranks=0", "train.ranks = 0: must be 1 or more"),
        ("train.ranks=two", "train.ranks = 'two': must be a whole number"),
        ("train.ranks=1.5", "train.ranks = 1.5: must be a whole number"),
        ("rollout.staleness=-1", "rollout.staleness = -1: must be 0 or more"),
        ("train.learning_rate=0", "train.learning_rate = 0: must be more than 0"),
        ("train.compile=maybe", "train.compile = 'maybe': must be true or false"),
        ("output.directory=", "output.directory"),
        ("sync=3", "sync = 3: must be a section with fields"),
        ("name=a b", "name = 'a b': must match pattern"),
    ],
)
def test_a_wrong_value_is_one_line_in_our_own_words(tmp_path: Path, override: str, rule: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(GOOD)
    if override.endswith("="):
        override += "''"
        rule += " = '': must not be empty"
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, [override])
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"--set {override}: ")
    assert rule in line
    assert "should" not in line


class Either(BaseModel):
    """Hold what pydantic reports once for each alternative, beside two equal values that are both wrong."""

    size: int | bool = 1
    low: int = 1
    high: int = 1


def test_alternatives_of_one_field_become_one_mistake_and_equal_values_of_two_fields_stay_two() -> None:
    values = {"size": "many", "low": "x", "high": "x"}
    with pytest.raises(ValidationError) as caught:
        Either.model_validate(values)
    found = [(".".join(map(str, mistake.key)), mistake.rule) for mistake in find_mistakes(caught.value, values)]
    assert found == [
        ("size", "must be a whole number, or must be true or false"),
        ("low", "must be a whole number"),
        ("high", "must be a whole number"),
    ]
