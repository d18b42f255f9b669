"""Check the server process: SGLang's protocol on the wire, bad input, keys, ports, signals and deaths."""

import asyncio
import os
import re
import threading
from typing import Any

import aiohttp
import pytest

from arl.engine.embedded.server import main
from arl.launch.child import RUN_KEY
from tests.engine.conftest import KEY, VOCAB, ServerProcess, Weights, within
from tests.forks import Fork, pipe

HEADERS = {"Authorization": f"Bearer {KEY}"}
SAMPLING: dict[str, object] = {"max_new_tokens": 6, "sampling_seed": 0}


async def post(server: ServerProcess, path: str, body: Any, headers: dict[str, str] = HEADERS) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(server.url + path, json=body) as response,
    ):
        return response.status, await response.text()


def generate(*input_ids: object, **more: object) -> dict[str, object]:
    names = [f"r{i}" for i in range(len(input_ids))]
    return {"input_ids": input_ids, "rid": names, "sampling_params": [SAMPLING] * len(input_ids), **more}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (generate([1, VOCAB]), "outside the vocabulary"),
        (generate([1], [2], rid=["same", "same"]), "open already"),
        (generate([1], sampling_params=[SAMPLING | {"temprature": 1}]), "temprature"),
        (generate([1], stream=False), "give stream and return_logprob as true"),
    ],
)
def test_bad_input_gets_a_400_that_says_why(server: ServerProcess, body: Any, message: str) -> None:
    status, answer = within(lambda: post(server, "/generate", body))
    assert status == 400
    assert message in answer
    assert within(lambda: post(server, "/generate", generate([1])))[0] == 200


@pytest.mark.parametrize(("mode", "flushed"), [("in_place", 400), ("retract", 200)])
def test_a_pause_keeps_what_is_open_and_in_place_its_cache(server: ServerProcess, mode: str, flushed: int) -> None:
    async def scenario() -> None:
        body = generate([1], sampling_params=[SAMPLING | {"max_new_tokens": 500}])
        assert (await post(server, "/pause_generation", {"mode": "abort"}))[0] == 400
        answer = asyncio.create_task(post(server, "/generate", body))
        while (await post(server, "/flush_cache", {}))[0] != 400:
            pass  # `within` bounds it
        assert (await post(server, "/pause_generation", {"mode": mode}))[0] == 200
        assert (await post(server, "/flush_cache", {}))[0] == flushed
        assert (await post(server, "/release_memory_occupation", {}))[0] == 400
        assert (await post(server, "/abort_request", {"abort_all": True}))[0] == 200
        assert '"abort"' in (await answer)[1]
        assert (await post(server, "/flush_cache", {}))[0] == 200
        assert (await post(server, "/continue_generation", {}))[0] == 200

    within(scenario)


def test_a_reader_that_leaves_frees_its_slots(server: ServerProcess) -> None:
    async def scenario() -> None:
        body = generate([1], sampling_params=[SAMPLING | {"max_new_tokens": 500}])
        async with (
            aiohttp.ClientSession(headers=HEADERS) as session,
            session.post(server.url + "/generate", json=body) as response,
        ):
            await response.content.readany()
        while (await post(server, "/flush_cache", {}))[0] != 200:
            pass  # `within` bounds it

    within(scenario)


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY}])
def test_nobody_is_answered_without_the_key(server: ServerProcess, headers: dict[str, str]) -> None:
    for path in ("/generate", "/health", "/nowhere"):
        assert within(lambda path=path: post(server, path, {}, headers))[0] == 401  # type: ignore[misc]


def test_a_key_is_made_and_printed_behind_the_address(old: Weights) -> None:
    environment = {name: value for name, value in os.environ.items() if name != RUN_KEY}
    output, its_output = pipe()
    process = Fork("arl.cli", ["serve", old.path, "--port", "0", "--slots", "2"], environment, output=its_output)
    ready = next(line for line in output if line.startswith("ready "))
    found = re.fullmatch(r"ready (http://127\.0\.0\.1:\d+) with Authorization: (Bearer [0-9a-f]{48})\n", ready)
    assert found is not None, ready
    server = ServerProcess(found[1], process, threading.current_thread())
    assert within(lambda: post(server, "/generate", generate([1]), {}))[0] == 401
    assert within(lambda: post(server, "/generate", generate([1]), {"Authorization": found[2]}))[0] == 200
    assert server.end() == 0


def test_what_cannot_be_served_is_refused_with_one_clear_line(
    server: ServerProcess, old: Weights, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUN_KEY, KEY)

    def refused(model: str, port: str, host: str = "127.0.0.1") -> str:
        with pytest.raises(SystemExit) as ended:
            main(["--model", model, "--port", port, "--host", host, "--threads", "1"])
        assert ended.value.code == 2
        message = capsys.readouterr().err.strip()
        assert "\n" not in message
        return message

    port = server.url.rpartition(":")[2]
    assert f"cannot listen on 127.0.0.1:{port}" in refused(old.path, port)
    assert "/nowhere" in refused("/nowhere", "0")
    monkeypatch.delenv(RUN_KEY)
    assert "set ARL_RUN_KEY" in refused(old.path, "0", "0.0.0.0")
