"""Check who may ask the embedded server, and what may be asked of it."""

import asyncio
import os
import re
import threading
from pathlib import Path

import aiohttp
import pytest

from arl.engine.embedded.server import parse
from arl.engine.http import wire
from arl.errors import InputError
from arl.launch.child import RUN_KEY
from tests.engine.conftest import KEY, ServerProcess, Weights, start_server, within
from tests.engine.test_server import SAMPLING, post
from tests.forks import Fork, pipe


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY}])
@pytest.mark.parametrize("path", ["/generate", "/health", "/update_weights_from_disk", "/nowhere"])
def test_nobody_is_answered_without_the_key(server: ServerProcess, path: str, headers: dict[str, str]) -> None:
    assert within(lambda: post(server, path, {"input_ids": [1]}, headers))[0] == 401


def test_what_is_too_large_or_leads_nowhere_is_refused_and_the_server_goes_on(server: ServerProcess) -> None:
    async def scenario() -> None:
        large = b" " * (wire.MOST_BYTES + 1)
        headers = {"Authorization": f"Bearer {KEY}"}
        async with aiohttp.ClientSession(server.url, headers=headers) as client:
            async with client.post("/generate", data=large) as answer:
                assert answer.status == 413
                assert "send several" in (await answer.json())["error"]["message"]
            async with client.get("/generate") as answer:
                assert answer.status == 405
        assert (await post(server, "/nowhere", {}))[0] == 404
        assert (await post(server, "/generate", {"input_ids": [1], "sampling_params": SAMPLING}))[0] == 200

    within(scenario)


@pytest.mark.parametrize(
    ("option", "value", "fits"),
    [
        ("--port", "99999", "from 0 to 65535"),
        ("--port", "-1", "from 0 to 65535"),
        ("--slots", "0", "from 1"),
        ("--threads", "0", "from 1"),
        ("--version", str(2**31), f"to {2**31 - 1}"),
        ("--stream-interval", "0", "from 1"),
        ("--broadcast-seconds", "nan", "from 0.001"),
        ("--broadcast-seconds", "inf", "from 0.001"),
    ],
)
def test_an_option_that_cannot_be_served_is_refused_with_what_fits(
    old: Weights, option: str, value: str, fits: str
) -> None:
    with pytest.raises(InputError, match=f"{option} {re.escape(value)}.*{fits}"):
        parse(["--model", old.path, option, value])


def test_a_key_is_made_and_printed_behind_the_address(old: Weights) -> None:
    environment = {name: value for name, value in os.environ.items() if name != RUN_KEY}
    output, its_output = pipe()
    process = Fork("arl.cli", ["serve", old.path, "--port", "0", "--slots", "2"], environment, output=its_output)
    ready = next(line for line in output if line.startswith("ready "))
    found = re.fullmatch(r"ready (http://127\.0\.0\.1:\d+) with Authorization: (Bearer [0-9a-f]{48})\n", ready)
    assert found is not None, ready
    server = ServerProcess(found[1], process, 0.0, threading.current_thread())
    body = {"input_ids": [1], "sampling_params": SAMPLING}
    assert within(lambda: post(server, "/generate", body, {}))[0] == 401
    assert within(lambda: post(server, "/generate", body, {"Authorization": found[2]}))[0] == 200
    assert server.end() == 0


@pytest.mark.parametrize("version", ["2147483648", "1099511627776", "9" * 5000, "-1", "1.0", "٣", "", " 1", "default"])
def test_a_version_that_does_not_fit_is_refused(server: ServerProcess, old: Weights, version: str) -> None:
    body = {"model_path": old.path, "weight_version": version, "flush_cache": False}
    code, answer = within(lambda: post(server, "/update_weights_from_disk", body))
    assert code == 400
    assert "must be an integer from 0 to 2147483647" in answer["error"]["message"]


def test_a_group_at_a_dead_address_is_given_up_and_holds_up_nobody(old: Weights, tmp_path: Path) -> None:
    """SIGTERM ends the server within its deadline while it still tries."""
    own = start_server(old.path, tmp_path / "log", broadcast_seconds=1.0)
    group = {"master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1, "world_size": 2, "backend": "gloo"}

    async def scenario() -> None:
        joining = [asyncio.create_task(post(own, "/init_weights_update_group", group)) for _ in range(9)]
        assert (await post(own, "/generate", {"input_ids": [1], "sampling_params": SAMPLING}))[0] == 200
        answers = await asyncio.gather(*joining)
        assert {status for status, _ in answers} == {400}
        asyncio.create_task(post(own, "/init_weights_update_group", group)).add_done_callback(lambda _: None)

    within(scenario)
    assert own.end() == 0
