"""Check the server process: SGLang's protocol on the wire, bad input, keys, ports, signals and deaths."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from arl.engine.embedded.server import main
from tests.engine.conftest import KEY, VOCAB, ServerProcess, Weights, within

HEADERS = {"Authorization": f"Bearer {KEY}"}
SAMPLING: dict[str, object] = {"max_new_tokens": 6, "sampling_seed": 0}


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


def generate(*input_ids: object, **more: object) -> dict[str, object]:
    names = [f"r{i}" for i in range(len(input_ids))]
    return {"input_ids": input_ids, "rid": names, "sampling_params": [SAMPLING] * len(input_ids), **more}


def test_a_stream_holds_increments_and_ends_with_done(server: ServerProcess) -> None:
    _, text = within(lambda: post(server, "/generate", generate([1], [2])))
    *events, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert len(events) == 4  # an increment of 4 tokens and one of 2, for each
    ends = [json.loads(event.removeprefix("data: ")) for event in events[2:]]
    for end in ends:
        meta = end["meta_info"]
        assert [token for _, token, _ in meta["output_token_logprobs"]] == end["output_ids"]
        assert (meta["completion_tokens"], meta["finish_reason"]) == (6, {"type": "length"})
        assert meta["weight_versions"] == [{"version": meta["weight_version"], "start": 0, "end": 2}]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (generate([1, VOCAB]), "outside the vocabulary"),
        (generate([1], [2], rid=["same", "same"]), "open already"),
        (generate([1], sampling_params=[SAMPLING | {"temprature": 1}]), "temprature"),
    ],
)
def test_bad_input_gets_a_400_that_says_why(server: ServerProcess, body: Any, message: str) -> None:
    status, answer = within(lambda: post(server, "/generate", body))
    assert status == 400
    assert message in answer
    assert within(lambda: post(server, "/generate", generate([1])))[0] == 200


def test_flushing_is_refused_while_requests_are_open(server: ServerProcess) -> None:
    """A pause drops nothing; abort_all ends them."""

    async def scenario() -> None:
        assert (await post(server, "/pause_generation", {"mode": "in_place"}))[0] == 200
        answer = asyncio.create_task(post(server, "/generate", generate([1])))
        await answered(server, "/flush_cache", 400)
        assert (await post(server, "/abort_request", {"rid": "unknown"}))[0] == 200
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
        await answered(server, "/flush_cache", 200)

    within(scenario)


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARL_RUN_KEY", KEY)


def test_what_cannot_be_served_is_refused_with_one_clear_line(
    server: ServerProcess, old: Weights, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
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
    monkeypatch.delenv("ARL_RUN_KEY")
    assert "set ARL_RUN_KEY" in refused(old.path, "0", "0.0.0.0")
