"""Check who may ask the embedded server, and what may be asked of it."""

import os
import re
import threading

import aiohttp
import pytest

from arl.engine.embedded.server import parse
from arl.engine.http import wire
from arl.errors import InputError
from arl.launch.child import RUN_KEY
from tests.engine.conftest import KEY, ServerProcess, Weights, within
from tests.engine.test_server import SAMPLING, post
from tests.forks import Fork, pipe


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY}])
@pytest.mark.parametrize("path", ["/generate", "/health", "/update_weights_from_disk", "/nowhere"])
def test_nobody_is_answered_without_the_key(server: ServerProcess, path: str, headers: dict[str, str]) -> None:
    assert within(lambda: post(server, path, {"input_ids": [1]}, headers))[0] == 401


def test_what_is_too_large_or_leads_nowhere_is_refused_and_the_server_goes_on(server: ServerProcess) -> None:
    async def scenario() -> None:
        large = b" " * (wire.MAX_BYTES + 1)
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
