"""Check the command line and the environment of an SGLang server."""

import json
import os

import msgspec
import pytest
from pydantic import ValidationError

from arl.config.recipe import TinyModel
from arl.engine.http.wire import sampling_of
from arl.engine.sglang import server_command
from arl.engine.sglang.server_process import divide_threads
from arl.launch.base import Resources
from arl.models.tiny import make_tiny_model
from arl.tasks.running_checksum import CHARACTERS
from arl.types import SamplingParams
from tests.engine.conftest import sglang_spec

BIND = "SGLANG_CPU_OMP_THREADS_BIND"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("model")
    make_tiny_model(TinyModel(), CHARACTERS, 0, directory)
    return str(directory)


def test_expandable_segments_of_the_shell_do_not_reach_a_server_that_releases_its_memory(
    monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:256,expandable_segments:True")
    shared = server_command.environment(sglang_spec(model, Resources(1, ("0",), True)), "python")
    assert shared["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:256"
    alone = server_command.environment(sglang_spec(model, Resources(1, ("0",))), "python")
    assert "PYTORCH_CUDA_ALLOC_CONF" not in alone


def test_logprobs_are_those_of_the_temperature_whatever_the_shell_says(
    monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.setenv("SGLANG_RETURN_ORIGINAL_LOGPROB", "1")
    env = server_command.environment(sglang_spec(model, Resources(1)), "python")
    assert env["SGLANG_RETURN_ORIGINAL_LOGPROB"] == "0"
    with pytest.raises(ValidationError, match=r"SGLANG_RETURN_ORIGINAL_LOGPROB: arl sets it \(0, because"):
        sglang_spec(model, Resources(1), environment={"SGLANG_RETURN_ORIGINAL_LOGPROB": "1"})


def test_every_request_carries_its_own_seed_even_if_that_is_0() -> None:
    """SGLang's deterministic mode gives 42 to all requests without one, and a group would sample alike."""
    sent = json.loads(msgspec.json.encode(sampling_of(SamplingParams(8, seed=0))))
    assert sent["sampling_seed"] == 0


def test_workers_of_a_server_divide_its_threads_and_on_a_cpu_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "6")
    monkeypatch.setenv(BIND, "whatever divide_threads sets is undone")
    monkeypatch.delenv(BIND)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {8, 9, 10, 11, 12, 13})
    divide_threads(2)
    assert (os.environ["OMP_NUM_THREADS"], os.environ.get(BIND)) == ("3", None)
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
    divide_threads(2)
    assert os.environ[BIND] == "8,9,10|11,12,13"
    divide_threads(3)
    assert os.environ[BIND] == "8,9,10|11,12,13", "what somebody has named stays"
