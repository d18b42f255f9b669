"""Check the server process: SGLang's protocol on the wire, bad input, keys, ports, signals and deaths."""

import asyncio
import subprocess
import sys
from typing import Any

import aiohttp
import psutil
import pytest

from arl.engine.embedded.server import main
from tests.engine.conftest import CONTEXT, KEY, VOCAB, ServerProcess, Weights, within

HEADERS = {"Authorization": f"Bearer {KEY}"}
SAMPLING = {"max_new_tokens": 6, "temperature": 1.0, "ignore_eos": True}


async def post(server: ServerProcess, path: str, body: Any, headers: dict[str, str] = HEADERS) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(server.url + path, json=body) as response,
    ):
        text = await response.text()
        return response.status, await response.json() if text.startswith(("{", "[")) else text


async def answered(server: ServerProcess, path: str, status: int) -> None:
    """Ask until the server's state shows in its answer; `within` bounds it."""
    got = None
    while got != status:
        got, _ = await post(server, path, {})


def test_a_single_request_is_answered_as_sglang_answers(server: ServerProcess) -> None:
    body = {"input_ids": [1, 2], "rid": "mine", "sampling_params": SAMPLING, "return_logprob": True}
    status, answer = within(lambda: post(server, "/generate", body))
    meta = answer["meta_info"]
    assert status == 200
    assert len(answer["output_ids"]) == meta["completion_tokens"] == 6
    assert meta["id"] == "mine"
    assert meta["finish_reason"] == {"type": "length", "length": 6}
    assert [token for _, token, _ in meta["output_token_logprobs"]] == answer["output_ids"]
    assert meta["weight_versions"] == [{"version": meta["weight_version"], "start": 0, "end": 6}]


def test_a_stream_holds_increments_and_ends_with_done(server: ServerProcess) -> None:
    body = {"input_ids": [[1], [2]], "sampling_params": SAMPLING, "stream": True}
    _, text = within(lambda: post(server, "/generate", body))
    *events, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert len(events) == 4  # an increment of 4 tokens and one of 2, for each


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"input_ids": [1, VOCAB]}, "outside the vocabulary"),
        ({"input_ids": []}, "empty"),
        ({"input_ids": [[1], []]}, "empty"),
        ({"input_ids": [[1], 2]}, "mixes"),
        ({"input_ids": [1] * CONTEXT}, "context"),
        ({"input_ids": [[1], [2]], "rid": ["same", "same"]}, "open already"),
        ({"input_ids": [[1], [2]], "rid": ["one"]}, "belong together"),
        ({"input_ids": ["one"]}, "Expected"),
        ({"input_ids": [1], "sampling_params": {"temprature": 1}}, "temprature"),
        ({"input_ids": [1], "sampling_params": {"temperature": -1}}, "temperature"),
        ({}, "input_ids"),
        ([], "Expected"),
    ],
)
def test_bad_input_gets_a_400_that_says_why(server: ServerProcess, body: Any, message: str) -> None:
    status, answer = within(lambda: post(server, "/generate", body))
    assert status == 400
    assert message in answer["error"]["message"]
    assert within(lambda: post(server, "/generate", {"input_ids": [1], "sampling_params": SAMPLING}))[0] == 200


def test_flushing_is_refused_while_requests_are_open(server: ServerProcess) -> None:
    """Under in_place nothing is dropped; abort_all ends them."""

    async def scenario() -> None:
        assert (await post(server, "/pause_generation", {"mode": "in_place"}))[0] == 200
        answer = asyncio.create_task(post(server, "/generate", {"input_ids": [1], "sampling_params": SAMPLING}))
        await answered(server, "/flush_cache", 400)
        assert (await post(server, "/abort_request", {"rid": "unknown"}))[0] == 200
        assert (await post(server, "/abort_request", {"abort_all": True}))[0] == 200
        assert (await answer)[1]["meta_info"]["finish_reason"]["type"] == "abort"
        assert (await post(server, "/flush_cache", {}))[0] == 200
        assert (await post(server, "/continue_generation", {}))[0] == 200

    within(scenario)


def test_a_reader_that_leaves_frees_its_slots(server: ServerProcess) -> None:
    async def scenario() -> None:
        body = {"input_ids": [1], "sampling_params": {**SAMPLING, "max_new_tokens": 500}, "stream": True}
        async with (
            aiohttp.ClientSession(headers=HEADERS) as session,
            session.post(server.url + "/generate", json=body) as response,
        ):
            await response.content.readany()
        await answered(server, "/flush_cache", 200)

    within(scenario)


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARL_RUN_KEY", KEY)


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--threads", "1"])
    assert ended.value.code == 2
    message = capsys.readouterr().err.strip()
    assert "\n" not in message
    return message


def test_a_port_in_use_ends_the_start_with_one_clear_line(
    server: ServerProcess, old: Weights, capsys: pytest.CaptureFixture[str]
) -> None:
    port = server.url.rpartition(":")[2]
    assert f"cannot listen on 127.0.0.1:{port}" in refused(capsys, ["--model", old.path, "--port", port])


def test_beyond_loopback_a_key_is_required(
    old: Weights, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ARL_RUN_KEY", raising=False)
    message = refused(capsys, ["--model", old.path, "--host", "0.0.0.0", "--port", "0"])
    assert "ARL_RUN_KEY" in message


def test_a_model_that_is_not_there_ends_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert "/nowhere" in refused(capsys, ["--model", "/nowhere", "--port", "0"])


def test_a_server_dies_with_its_parent(old: Weights) -> None:
    """The parent is killed while its server is still starting."""
    child = [sys.executable, "-m", "arl.engine.embedded.server", "--model", old.path, "--port", "0"]
    script = (
        "import os, subprocess, sys\n"
        "env = {**os.environ, 'ARL_PARENT_PID': str(os.getpid())}\n"
        f"child = subprocess.Popen({child!r}, env=env, stdout=subprocess.PIPE)\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    orphan = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait(timeout=10)
    orphan.wait(timeout=120)  # it asks the kernel for its death once it has imported torch
