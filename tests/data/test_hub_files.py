"""Files of a data set are downloaded once, found in the cache without a network, and named when they are nowhere."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

from arl.data.hub import find_files
from arl.errors import DataError

REPO = "someone/sums"
SPEC = f"hf://datasets/{REPO}/main/train-*.jsonl"
FETCH = f"hf download --repo-type dataset {REPO} --include 'main/train-*.jsonl'"
FILES = ["train-0.jsonl", "train-1.jsonl"]


def put(cache: Path) -> None:
    """Fill the cache as downloads of these files and of another one do."""
    home = cache / f"datasets--{REPO.replace('/', '--')}"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text("abc")
    (home / "snapshots" / "abc" / "main").mkdir(parents=True)
    for name in [*FILES, "test-0.jsonl"]:
        (home / "snapshots" / "abc" / "main" / name).write_text("{}")


def test_the_files_of_a_glob_are_downloaded_and_no_others(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def download(repo: str, **options: Any) -> str:
        asked.append({"repo": repo, **options})
        put(cache)
        return str(next(cache.glob("*/snapshots/*")))

    monkeypatch.setattr(huggingface_hub.HfApi, "repo_info", lambda *args, **options: SimpleNamespace(sha="abc"))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert [path.name for path in find_files(SPEC, "data.path")] == FILES
    (options,) = asked
    assert (options["repo"], options["repo_type"], options["allow_patterns"]) == (REPO, "dataset", "main/train-*.jsonl")


def test_cached_files_are_used_where_the_hub_does_not_answer(cache: Path) -> None:
    put(cache)
    assert [path.name for path in find_files(SPEC, "data.path")] == FILES
    assert constants.HF_HUB_OFFLINE is True  # so that later files do not wait for it again
    assert [path.name for path in find_files(SPEC, "data.path")] == FILES


def test_what_is_nowhere_is_refused_with_the_command_that_fetches_it(cache: Path) -> None:
    with pytest.raises(DataError) as caught:
        find_files(SPEC, "data.path")
    message = str(caught.value)
    assert message.startswith(f"data.path {SPEC}: not found. Not in the Hugging Face cache {cache}; http://127.0.0.1:9")
    assert "cannot be reached" in message
    assert f"`{FETCH}`" in message
