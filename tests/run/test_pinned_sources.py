"""What a recipe names on the hub is pinned to a commit, which the run records and a resumed run takes again."""

from pathlib import Path

import pytest
from huggingface_hub import constants

from arl.config.recipe import Recipe
from arl.config.recipe_file import dump_recipe
from arl.errors import DataError, InputError
from arl.metrics.run_files import RECIPE, SOURCES
from arl.run.pinned_sources import Pinned, RecordedSources, pin_sources, read_recorded, write_named
from tests.data.fake_hub import SHA, FakeHub

OTHER = "f" * 40
MODEL = "someone/small"
DATA = "someone/sums"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an empty Hugging Face cache, and let nobody answer at the hub's address."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    return tmp_path / "hub"


def recipe(model: str = MODEL, data: str = f"hf://datasets/{DATA}/train.jsonl") -> Recipe:
    return Recipe.model_validate({"model": {"path": model}, "data": {"path": data}, "reward": {"function": "a:b"}})


def downloaded(cache: Path, kind: str, repo: str, revision: str, commit: str) -> None:
    """Fill the cache as a download does."""
    refs = cache / f"{kind}s--{repo.replace('/', '--')}" / "refs"
    refs.mkdir(parents=True, exist_ok=True)
    (refs / revision).write_text(commit)


def test_without_a_network_the_cache_says_what_a_branch_was(cache: Path) -> None:
    downloaded(cache, "model", MODEL, "v1", OTHER)
    downloaded(cache, "dataset", DATA, "main", SHA)
    pinned = pin_sources(recipe(model=f"{MODEL}@v1")).recipe
    assert pinned.model.path == f"{MODEL}@{OTHER}"
    assert pinned.data.path == f"hf://datasets/{DATA}@{SHA}/train.jsonl"


def test_the_hub_says_what_a_branch_is(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    downloaded(cache, "dataset", DATA, "main", OTHER)
    with FakeHub(DATA, {"train.jsonl": b"{}"}).serving() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        assert pin_sources(recipe()).recipe.data.path == f"hf://datasets/{DATA}@{SHA}/train.jsonl"


def test_what_nobody_knows_and_what_is_no_name_of_the_hub_stays(tmp_path: Path) -> None:
    unknown = pin_sources(recipe())
    assert unknown.recipe == recipe()
    assert not unknown.named
    model, data = unknown.notes
    assert model.startswith(f"model.path {MODEL}: neither the hub nor the cache says which commit it is")
    assert data.startswith(f"data.path hf://datasets/{DATA}/train.jsonl: neither")
    local = recipe(model=str(tmp_path), data="problems.jsonl")
    assert pin_sources(local) == Pinned(local, {})


@pytest.mark.parametrize("text", ["abc", "", f"{OTHER}\n{OTHER}", f"../{OTHER}", "F" * 40])
def test_what_the_cache_has_instead_of_a_commit_is_none(cache: Path, text: str) -> None:
    downloaded(cache, "model", MODEL, "main", text)
    assert pin_sources(recipe(data="p.jsonl")).recipe.model.path == MODEL


def test_a_commit_is_not_asked_for() -> None:
    pinned = recipe(model=f"{MODEL}@{SHA}", data=f"hf://datasets/{DATA}@{SHA}/train.jsonl")
    with FakeHub(DATA, {}).serving() as hub:
        assert pin_sources(pinned) == Pinned(pinned, {})
        assert hub.requests == 0


@pytest.fixture
def recorded(tmp_path: Path, cache: Path) -> RecordedSources:
    """Record a run of the model's branch `v1` and the data's main branch, which have moved since."""
    run = tmp_path / "run"
    run.mkdir()
    for revision, commit in {"v1": SHA, "dev": OTHER}.items():
        downloaded(cache, "model", MODEL, revision, commit)
    downloaded(cache, "dataset", DATA, "main", SHA)
    pinned = pin_sources(recipe(model=f"{MODEL}@v1"))
    (run / RECIPE).write_text(dump_recipe(pinned.recipe))
    write_named(run, pinned.named)
    for ref in cache.rglob("refs/*"):
        ref.write_text(OTHER)
    return read_recorded(run)


@pytest.mark.parametrize("at", ["@v1", f"@{SHA}"])
def test_a_resumed_run_takes_the_commits_that_it_recorded(recorded: RecordedSources, at: str) -> None:
    for data in (f"hf://datasets/{DATA}/train.jsonl", f"hf://datasets/{DATA}@main/train.jsonl"):
        resumed = pin_sources(recipe(model=f"{MODEL}{at}", data=data), recorded).recipe
        assert resumed.model.path == f"{MODEL}@{SHA}"
        assert resumed.data.path == f"hf://datasets/{DATA}@{SHA}/train.jsonl"
    assert pin_sources(recorded.recipe, recorded).recipe == recorded.recipe


@pytest.mark.parametrize("at", ["@dev", "", "@main"])
def test_a_resumed_run_that_names_another_branch_of_the_model_is_refused(recorded: RecordedSources, at: str) -> None:
    with pytest.raises(InputError, match=rf"model\.path = '{MODEL}.*': .*/run was made with '{MODEL}@v1'; resume with"):
        pin_sources(recipe(model=f"{MODEL}{at}"), recorded)


def test_a_resumed_run_that_names_another_branch_of_the_data_is_refused(recorded: RecordedSources) -> None:
    data = f"hf://datasets/{DATA}@dev/train.jsonl"
    with pytest.raises(
        InputError, match=rf"data\.path = '{data}': .* was made with 'hf://datasets/{DATA}/train.jsonl'"
    ):
        pin_sources(recipe(model=f"{MODEL}@v1", data=data), recorded)


def test_a_run_that_named_a_commit_is_not_resumed_with_a_branch(recorded: RecordedSources) -> None:
    (recorded.directory / SOURCES).unlink()
    with pytest.raises(InputError, match=rf"was made with '{MODEL}@{SHA}'"):
        pin_sources(recipe(model=f"{MODEL}@v1"), read_recorded(recorded.directory))


def test_other_files_of_the_hub_are_pinned_anew_and_compared_later(recorded: RecordedSources) -> None:
    other = recipe(model=f"{MODEL}@v1", data=f"hf://datasets/{DATA}/more.jsonl")
    assert pin_sources(other, recorded).recipe.data.path == f"hf://datasets/{DATA}@{OTHER}/more.jsonl"


def test_a_damaged_record_of_branches_is_named(recorded: RecordedSources) -> None:
    (recorded.directory / SOURCES).write_text('["v1"]')
    with pytest.raises(DataError, match=r"sources\.json: is damaged"):
        read_recorded(recorded.directory)
