"""A model that is nowhere is refused at once, with every place that was looked at."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from huggingface_hub import constants

from arl.data.hub import check_model_source, description_of
from arl.errors import DataError
from tests.data.fake_hub import point_to, served


def put(cache: Path, repo: str) -> None:
    """Fill the cache as a download does."""
    home = cache / f"models--{repo.replace('/', '--')}"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text("abc")
    (home / "snapshots" / "abc").mkdir(parents=True)
    (home / "snapshots" / "abc" / "config.json").write_text("{}")


def refusal(path: str) -> str:
    with pytest.raises(DataError) as caught:
        check_model_source(path)
    return str(caught.value)


def test_a_directory_that_is_no_model_is_refused_beside_its_neighbors(tmp_path: Path) -> None:
    (tmp_path / "step_9").mkdir()
    message = refusal(str(tmp_path / "step_10"))
    assert message == f"model.path {tmp_path}/step_10: there is no directory {tmp_path}/step_10; {tmp_path} has step_9"
    assert refusal(str(tmp_path)).startswith(f"model.path {tmp_path}: has no config.json")


def test_a_repo_id_without_a_network_is_refused_with_all_three_places(cache: Path) -> None:
    message = refusal("Qwen/Qwen2.5-0.5B-Instruct")
    assert f"No directory {Path.cwd()}/Qwen/Qwen2.5-0.5B-Instruct" in message
    assert f"not in the Hugging Face cache {cache}" in message
    assert "http://127.0.0.1:9: cannot be reached" in message


@pytest.fixture
def refusing_hub(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[None]:
    """Start a hub that answers every request with an error."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(403)
            self.send_header("X-Error-Code", "GatedRepo")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with served(Handler) as url:
        point_to(url, monkeypatch)
        yield


def test_a_cached_model_that_the_hub_refuses_is_used_with_a_note_and_the_hub_is_asked_again(
    cache: Path, refusing_hub: None
) -> None:
    put(cache, "Qwen/Qwen2.5-0.5B-Instruct")
    note = check_model_source("Qwen/Qwen2.5-0.5B-Instruct")
    assert note is not None
    assert "answers 403" in note
    assert note.endswith(f"so the copy in the Hugging Face cache {cache} is used")
    assert constants.HF_HUB_OFFLINE is False
    assert description_of("Qwen/Qwen2.5-0.5B-Instruct") == f"{cache}/models--Qwen--Qwen2.5-0.5B-Instruct/snapshots/abc"


def test_a_cached_model_without_a_network_is_loaded_from_the_cache_alone(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(cache, "Qwen/Qwen2.5-0.5B-Instruct")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen").mkdir()  # of something else
    assert "run `hf download Qwen/absent` first" in refusal("Qwen/absent")
    note = check_model_source("Qwen/Qwen2.5-0.5B-Instruct")
    assert note is not None
    assert "http://127.0.0.1:9 cannot be reached" in note
    assert constants.HF_HUB_OFFLINE is True
    assert "not asked, because HF_HUB_OFFLINE is set" in refusal("Other/absent")
