"""A sweep is asked for on the command line, in a file, or in both."""

import re
from pathlib import Path
from typing import Any

import pytest

from arl.errors import InputError
from arl.sweep.request import SweepRequest, make_axis, parse_axis, read_request
from arl.sweep.sweep_arms import combine
from tests.forks import ROOT

FILE = """\
recipe: ../base.yaml
set: {train.learning_rate: 1.0e-4, data.options: {size: 9}, train.steps: 7}
axes:
  - rollout.staleness: [0, 4]
  - train.minibatches: [1, 2]
    train.ranks: [1, 2]
arms: {naive: {objective.kind: ppo}}
exclude: [{rollout.staleness: 4, train.ranks: 2}]
seeds: [3, 5]
jobs: 2
"""


def ask(path: Path, text: str, **options: Any) -> SweepRequest:
    path.mkdir(exist_ok=True)
    file = path / "study.yaml"
    file.write_text(text)
    return read_request(file, **options)


def test_a_sweep_file_says_everything(tmp_path: Path) -> None:
    request = ask(tmp_path / "sweeps", FILE)
    assert request.name == "study"
    assert request.recipe.resolve() == tmp_path / "base.yaml"
    assert request.overrides == ["train.learning_rate=0.0001", "data.options={size: 9}", "train.steps=7"]
    assert [list(axis[0]) for axis in request.axes] == [["rollout.staleness"], ["train.minibatches", "train.ranks"]]
    assert request.named == {"naive": {"objective.kind": "ppo"}}
    assert (request.seeds, request.jobs) == ([3, 5], 2)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("recipe: a.yaml\nseed: 3", r"study.yaml:2: seed = 3: unknown key; a sweep file has name, recipe, set, axes"),
        ("recipe: a.yaml\naxes: [{a.b: 3}]", r"study.yaml:2: axes.0.a.b = 3: .*list"),
        ("recipe: a.yaml\nset: {seed: 3}", "--set seed=3: every arm runs with each of the seeds"),
        ("recipe: a.yaml\nset: {name: x}", "--set name=x: the sweep names its runs"),
        ("recipe: a.yaml\nseeds: [1, 1]", r"study.yaml:2: seeds = .1, 1.: give a number of seeds, or .*each once"),
        ("recipe: a.yaml\naxes: {a.b: [1]}", r"study.yaml:2: axes = .*: must be a list, as in \[\{'a.b': \[1\]\}\]"),
        ("recipe: a.yaml\narms: {a/b: {}}", r"study.yaml:2: arms.a/b = 'a/b': a name consists of letters, digits"),
    ],
)
def test_a_mistake_in_a_sweep_file_is_refused_with_its_line(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        ask(tmp_path, text)


@pytest.mark.parametrize("name", ["../b", "b\n"])
def test_a_name_that_is_no_directory_beside_the_runs_is_refused(recipe: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"(?s)--name: name = .*: a name consists of letters, digits"):
        read_request(recipe, name=name)


@pytest.mark.parametrize("seeds", ["0", "", "a", "1,1", "["])
def test_seeds_are_a_number_or_a_list(recipe: Path, seeds: str) -> None:
    with pytest.raises(InputError, match=r"--seeds.*: give a number of seeds, or a list like 0,3,5"):
        read_request(recipe, seeds=seeds)


def test_the_sweep_file_of_the_guide_is_one(tmp_path: Path) -> None:
    guide = Path(ROOT, "docs/sweeps.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)
    request = ask(tmp_path, block)
    arms = combine(request.axes, request.named, request.exclude)
    assert len(arms) == 2 * 3 * 2 - 2 * 2


@pytest.mark.parametrize(
    ("text", "listed"),
    [
        ("null,1.5e-4,ppo", [None, 1.5e-4, "ppo"]),
        ("[gsm8k,math500],[]", [["gsm8k", "math500"], []]),
        ("{kind: ppo},{kind: gspo, clip_low: 1}", [{"kind": "ppo"}, {"kind": "gspo", "clip_low": 1}]),
        ("my_module:Mine,'a, b'", ["my_module:Mine", "a, b"]),
    ],
)
def test_commas_separate_values_unless_brackets_or_quotes_hold_them(text: str, listed: list[Any]) -> None:
    assert parse_axis(f"a.b={text}") == ("a.b", listed)


def test_fields_that_change_together_have_equally_many_values() -> None:
    axis = make_axis({"a.b": [1, 2], "c.d": ["x", "y"]}, "--paired")
    assert axis == [{"a.b": 1, "c.d": "x"}, {"a.b": 2, "c.d": "y"}]
    with pytest.raises(InputError, match=r"equally many values: a\.b has 2, c\.d has 1"):
        make_axis({"a.b": [1, 2], "c.d": ["x"]}, "--paired")
    with pytest.raises(InputError, match="at least one field and one value"):
        make_axis({"a.b": []}, "--axis a.b=")
