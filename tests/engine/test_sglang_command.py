"""Check the command line and the environment of an SGLang server."""

import json
from itertools import pairwise

import msgspec
import pytest
from pydantic import ValidationError

from arl.config.recipe import Recipe, TinyModel
from arl.engine.backend import ServerSpec
from arl.engine.http.wire import sampling_of
from arl.engine.sglang import server_command
from arl.launch.base import Resources
from arl.models.tiny import make_tiny_model
from arl.tasks.running_checksum import CHARACTERS
from arl.types import SamplingParams, StartingVersions


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("model")
    make_tiny_model(TinyModel(), CHARACTERS, 0, directory)
    return str(directory)


def spec(model: str, share: Resources, **engine: object) -> ServerSpec:
    given = {"model": {"path": model}, "data": {"task": "running_checksum"}, "engine": {"kind": "sglang", **engine}}
    return ServerSpec(
        recipe=Recipe.model_validate(given),
        versions=StartingVersions(model),
        resources=share,
        seed=0,
        host="127.0.0.1",
    )


def test_a_flag_of_the_user_comes_last_and_so_overrides_that_of_a_cpu(model: str) -> None:
    argv = server_command.command(spec(model, Resources(1), args=["--mem-fraction-static", 0.8]), "python")
    given = [value for flag, value in pairwise(argv) if flag == "--mem-fraction-static"]
    assert given == ["0.3", "0.8"]


def test_expandable_segments_of_the_shell_do_not_reach_a_server_that_releases_its_memory(
    monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:256,expandable_segments:True")
    shared = server_command.environment(spec(model, Resources(1, ("0",), True)), "python")
    assert shared["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:256"
    alone = server_command.environment(spec(model, Resources(1, ("0",))), "python")
    assert "PYTORCH_CUDA_ALLOC_CONF" not in alone


def test_logprobs_are_those_of_the_temperature_whatever_the_shell_says(
    monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.setenv("SGLANG_RETURN_ORIGINAL_LOGPROB", "1")
    env = server_command.environment(spec(model, Resources(1)), "python")
    assert env["SGLANG_RETURN_ORIGINAL_LOGPROB"] == "0"
    with pytest.raises(ValidationError, match=r"SGLANG_RETURN_ORIGINAL_LOGPROB: arl sets it \(0, because"):
        spec(model, Resources(1), environment={"SGLANG_RETURN_ORIGINAL_LOGPROB": "1"})


def test_every_request_carries_its_own_seed_even_if_that_is_0() -> None:
    """SGLang's deterministic mode gives 42 to all requests without one, and a group would sample alike."""
    sent = json.loads(msgspec.json.encode(sampling_of(SamplingParams(8, seed=0))))
    assert sent["sampling_seed"] == 0
