"""Files of a data set are downloaded once, found in the cache without a network, and named when they are nowhere."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from arl.data.hub import find_files
from arl.errors import DataError
from tests.data.fake_hub import FakeHub, point_to

REPO = "someone/sums"
SPEC = f"hf://datasets/{REPO}/main/train-*.jsonl"
FETCH = f"hf download --repo-type dataset {REPO} --include 'main/train-*.jsonl'"


def rows(first: int, count: int) -> bytes:
    lines = [json.dumps({"prompt": f"{i} + 1?", "answer": str(i + 1)}) for i in range(first, first + count)]
    return "\n".join(lines).encode()


@pytest.fixture
def hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """Serve a data set of two training files and one for tests."""
    files = {
        "main/train-00000-of-00002.jsonl": rows(0, 20),
        "main/train-00001-of-00002.jsonl": rows(20, 20),
        "main/test-00000-of-00001.jsonl": rows(40, 5),
        "README.md": b"# Sums",
    }
    with FakeHub(REPO, files).serving() as serving:
        point_to(serving.url, monkeypatch)
        yield serving


def test_the_files_of_a_glob_are_downloaded_and_no_others(hub: FakeHub) -> None:
    found = find_files(SPEC, "data.path")
    assert [path.name for path in found] == ["train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl"]
    assert sorted(hub.fetched) == ["main/train-00000-of-00002.jsonl", "main/train-00001-of-00002.jsonl"]


def test_cached_files_are_used_where_the_hub_does_not_answer(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    online = find_files(SPEC, "data.path")
    point_to("http://127.0.0.1:9", monkeypatch)
    assert find_files(SPEC, "data.path") == online
    assert constants.HF_HUB_OFFLINE is True  # so that later files do not wait for it again
    assert find_files(SPEC, "data.path") == online


def test_what_is_nowhere_is_refused_with_the_command_that_fetches_it(cache: Path) -> None:
    with pytest.raises(DataError) as caught:
        find_files(SPEC, "data.path")
    message = str(caught.value)
    assert message.startswith(f"data.path {SPEC}: not found. Not in the Hugging Face cache {cache}; http://127.0.0.1:9")
    assert "cannot be reached" in message
    assert f"`{FETCH}`" in message
