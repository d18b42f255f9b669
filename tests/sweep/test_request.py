"""A sweep is asked for on the command line, in a file, or in both."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.config.recipe_file import load_recipe
from arl.config.yaml_loader import dump_yaml
from arl.errors import InputError, RecipeError
from arl.sweep.combinations import combine
from arl.sweep.request import SweepOptions, SweepRequest, read_request
from tests.forks import ROOT

FILE = """\
recipe: ../base.yaml
set: {train.learning_rate: 1.0e-4, data.options: {size: 9}}
axes:
  - rollout.staleness: [0, 4]
  - train.minibatches: [1, 2]
    train.ranks: [1, 2]
arms: {naive: {objective.kind: ppo}}
exclude: [{rollout.staleness: 4, train.ranks: 2}]
seeds: [3, 5]
match: {steps: 7}
jobs: 2
"""


no_seed = st.one_of(st.booleans(), st.floats(0, 9), st.text("0123", min_size=1), st.integers(-(2**63), -1))
no_seeds: st.SearchStrategy[object] = st.one_of(
    no_seed, st.just({}), st.lists(no_seed, max_size=3), st.just(0), st.just([2**62 + 1])
)


def ask(path: Path, text: str, options: SweepOptions | None = None) -> SweepRequest:
    path.mkdir(exist_ok=True)
    file = path / "study.yaml"
    file.write_text(text)
    return read_request(file, options or SweepOptions())


def test_a_sweep_file_says_everything(tmp_path: Path) -> None:
    request = ask(tmp_path / "sweeps", FILE)
    assert request.name == "study"
    assert request.recipe.resolve() == tmp_path / "base.yaml"
    assert request.overrides == ["train.learning_rate=0.0001", "data.options={size: 9}", "train.steps=7"]
    assert [axis.fields for axis in request.axes] == [("rollout.staleness",), ("train.minibatches", "train.ranks")]
    assert request.named == {"naive": {"objective.kind": "ppo"}}
    assert request.seeds == [3, 5]
    assert request.jobs == 2


def test_options_override_what_the_file_says(tmp_path: Path) -> None:
    options = SweepOptions(
        name="other",
        overrides=["train.learning_rate=2.0e-4"],
        axes=["rollout.staleness=8,16"],
        paired=["rollout.group_size=2,4", "rollout.problems_per_step=8,4"],
        seeds="2",
        jobs=1,
    )
    request = ask(tmp_path / "sweeps", FILE, options)
    assert request.name == "other"
    assert request.overrides[-2:] == ["train.steps=7", "train.learning_rate=2.0e-4"]
    fields = [axis.fields for axis in request.axes]
    assert fields == [
        ("train.minibatches", "train.ranks"),
        ("rollout.staleness",),
        ("rollout.group_size", "rollout.problems_per_step"),
    ]
    assert request.axes[1].values("rollout.staleness") == [8, 16]
    assert request.seeds == [0, 1]
    assert request.jobs == 1


def test_a_recipe_is_swept_by_options_alone(recipe: Path) -> None:
    request = read_request(recipe, SweepOptions(axes=["rollout.staleness=0,4"], seeds="0,3"))
    assert request.name == "small-sweep"
    assert request.recipe == recipe
    assert request.seeds == [0, 3]
    assert read_request(recipe, SweepOptions(axes=["rollout.staleness=0,4"])).seeds is None, "the recipe's own"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("recipe: a.yaml\nseed: 3", r"study.yaml:2: seed = 3: unknown key; a sweep file has name, recipe, set, axes"),
        ("recipe: a.yaml\naxes: [{a.b: 3}]", r"study.yaml:2: axes.0.a.b = 3: .*list"),
        ("recipe: a.yaml\njobs: 0", r"study.yaml:2: jobs = 0: must be 1 or more"),
        ("recipe: a.yaml\nmatch: {steps: 1, tokens: 2}", "match: give tokens or steps, not both"),
        ("recipe: a.yaml\nset: {seed: 3}", "--set seed=3: every arm runs with each of the seeds"),
        ("recipe: a.yaml\nseeds: [1, 1]", r"study.yaml:2: seeds = .1, 1.: .*each once"),
        ("recipe: a.yaml\njobs: true", r"study.yaml:2: jobs = True: must be a number, and not true or false"),
        ("recipe: 3", r"study.yaml:1: recipe = 3: must be text"),
        ("recipe: a.yaml\naxes: {a.b: [1]}", r"study.yaml:2: axes = .*: must be a list, as in \[\{'a.b': \[1\]\}\]"),
        ("recipe: a.yaml\narms: {a/b: {}}", r"study.yaml:2: arms.a/b = 'a/b': a name consists of letters, digits"),
        ("recipe: a.yaml\naxes: [{a.b: [1], c.d: [1, 2]}]", r"axes: .*a.b has 1, c.d has 2"),
    ],
)
def test_a_mistake_in_a_sweep_file_is_refused_with_its_line(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        ask(tmp_path, text)


@pytest.mark.parametrize("name", ["a/b", "../b", "-b", "b\n"])
def test_a_name_that_is_no_directory_beside_the_runs_is_refused(recipe: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"(?s)--name .*: a name consists of letters, digits"):
        read_request(recipe, SweepOptions(name=name))


@pytest.mark.parametrize("line", ["name: of two words", 'name: ""', "name: a/b"])
def test_a_recipe_whose_name_is_no_directory_is_swept_under_another(recipe: Path, line: str) -> None:
    recipe.write_text(recipe.read_text().replace("name: small", line))
    with pytest.raises(InputError, match=r"small.yaml: the sweep would be named .*give another name by --name"):
        read_request(recipe, SweepOptions())
    assert read_request(recipe, SweepOptions(name="study")).name == "study"


@pytest.mark.parametrize(
    "beside",
    [
        "set: {train.steps: 9}",
        "set: {train: {tokens: 9}}",
        "axes: [{train.steps: [1, 2]}]",
        "axes: [{train: [{tokens: 1}, {tokens: 2}]}]",
        "arms: {long: {train.tokens: 9}}",
    ],
)
def test_nothing_beside_match_says_how_long_the_arms_train(tmp_path: Path, beside: str) -> None:
    with pytest.raises(InputError, match=r"match: sets train.steps=7 in every arm, and train.(steps|tokens) is set"):
        ask(tmp_path, f"recipe: a.yaml\nmatch: {{steps: 7}}\n{beside}")


def test_an_option_beside_match_cannot_set_another_budget(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"match: sets train.tokens=9 in every arm, and train.steps is set as well"):
        ask(tmp_path, "recipe: a.yaml\nmatch: {tokens: 9}", SweepOptions(overrides=["train.steps=7"]))


def test_a_field_that_is_paired_twice_is_refused(recipe: Path) -> None:
    paired = ["rollout.staleness=0,1", "train.minibatches=1,2", "rollout.staleness=2,3"]
    with pytest.raises(InputError, match=r"--paired rollout.staleness=2,3: rollout.staleness is given twice"):
        read_request(recipe, SweepOptions(paired=paired))


@pytest.mark.parametrize("seeds", ["0", "-1", "a", "1,1", "[", "1.5"])
def test_seeds_are_a_number_or_a_list(recipe: Path, seeds: str) -> None:
    with pytest.raises(InputError, match="give a number of seeds, or a list like 0,3,5"):
        read_request(recipe, SweepOptions(seeds=seeds))


@given(no_seeds)
def test_seeds_of_a_file_are_whole_numbers_as_they_are_written(
    tmp_path_factory: pytest.TempPathFactory, seeds: object
) -> None:
    text = dump_yaml({"recipe": "a.yaml", "seeds": seeds})
    with pytest.raises(
        InputError, match=r"study.yaml:\d+: seeds = (?!.*constrained).*give a number of seeds, or a list"
    ):
        ask(tmp_path_factory.getbasetemp(), text)


def test_a_sweep_file_is_no_recipe_of_one_run(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(FILE)
    with pytest.raises(RecipeError, match=r"study.yaml: is a sweep file.*; start them by `arl sweep .*study.yaml`"):
        load_recipe(file)


def test_the_sweep_file_of_the_guide_is_one(tmp_path: Path) -> None:
    guide = Path(ROOT, "docs/sweeps.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)
    request = ask(tmp_path, block)
    arms = combine(request.axes, request.named, request.exclude, request.only)
    assert len(arms) == 2 * 3 * 2 - 2 * 2
