"""What a recipe names on the hub is pinned to a commit, which the run records and a resumed run takes again."""

from pathlib import Path

import pytest
from huggingface_hub import constants

from arl.config.recipe import Recipe
from arl.config.recipe_file import dump_recipe
from arl.metrics.run_files import RECIPE
from arl.run.resume import pin_sources
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
    pinned = pin_sources(recipe(model=f"{MODEL}@v1"))[0]
    assert pinned.model.path == f"{MODEL}@{OTHER}"
    assert pinned.data.path == f"hf://datasets/{DATA}@{SHA}/train.jsonl"


def test_the_hub_says_what_a_branch_is(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    downloaded(cache, "dataset", DATA, "main", OTHER)
    with FakeHub(DATA, {"train.jsonl": b"{}"}).serving() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        assert pin_sources(recipe())[0].data.path == f"hf://datasets/{DATA}@{SHA}/train.jsonl"


def test_what_neither_hub_nor_cache_knows_and_what_is_no_name_of_the_hub_stays(tmp_path: Path) -> None:
    unknown, (model, data) = pin_sources(recipe())
    assert unknown == recipe()
    assert model.startswith(f"model.path {MODEL}: neither the hub nor the cache says which commit it is")
    assert data.startswith(f"data.path hf://datasets/{DATA}/train.jsonl: neither")
    local = recipe(model=str(tmp_path), data="problems.jsonl")
    assert pin_sources(local) == (local, [])


@pytest.fixture
def run(tmp_path: Path, cache: Path) -> Path:
    """Record a run of the model's branch `v1` and the data's main branch, which have moved since."""
    run = tmp_path / "run"
    run.mkdir()
    downloaded(cache, "model", MODEL, "v1", SHA)
    downloaded(cache, "dataset", DATA, "main", SHA)
    pinned, _ = pin_sources(recipe(model=f"{MODEL}@v1"))
    (run / RECIPE).write_text(dump_recipe(pinned))
    for ref in cache.rglob("refs/*"):
        ref.write_text(OTHER)
    return run


def test_a_resumed_run_takes_the_commits_that_it_recorded(run: Path) -> None:
    resumed, notes = pin_sources(recipe(model=f"{MODEL}@v1"), run)
    assert resumed.model.path == f"{MODEL}@{SHA}"
    assert resumed.data.path == f"hf://datasets/{DATA}@{SHA}/train.jsonl"
    assert not notes
    assert pin_sources(resumed, run) == (resumed, [])
