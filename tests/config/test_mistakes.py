"""A wrong value is named with its field, its rule in plain words, and what was probably meant, each on one line."""

import re
from pathlib import Path

import pytest

from arl.config.mistakes import OTHER_SYSTEMS
from arl.config.recipe_file import load_recipe
from arl.config.reference import FILE
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
        ("train.lr=1", "train.lr: unknown key; in arl, lr is train.learning_rate"),
        ("num_generations=8", "in arl, num_generations is rollout.group_size"),
        ("train.beta=0.04", "in arl, beta is objective.reference.coefficient"),
        ("train.load_in_4bit=true", "in arl, load_in_4bit is absent, because nothing is quantized"),
        ("actor_rollout_ref.rollout.n=8", "actor_rollout_ref: unknown key; in arl, n is rollout.group_size"),
        ("trainer={total_epochs: 3, save_freq: 5}", "epochs these are; in arl, save_freq is output.checkpoint_every"),
        ("data.options.n=3", "data.options.n: unknown key; valid: size"),
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


def test_what_other_systems_call_their_fields_leads_to_fields_that_exist() -> None:
    reference = FILE.read_text()
    named = re.findall(r"[a-z]+\.[a-z_]+", re.sub(r": .*", "", OTHER_SYSTEMS.read_text()))
    fields = [name for name in named if name not in ("arl.config", "mistakes.py")]
    assert len(fields) > 40
    assert [field for field in fields if f"`{field}`" not in reference and f"## `{field}`" not in reference] == []
