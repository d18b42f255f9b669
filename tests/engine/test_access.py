"""Check who may ask the embedded server."""

import os
import re
import threading

import pytest

from arl.launch.child import RUN_KEY
from tests.engine.conftest import KEY, ServerProcess, Weights, within
from tests.engine.test_server import SAMPLING, post
from tests.forks import Fork, pipe


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY}])
@pytest.mark.parametrize("path", ["/generate", "/health", "/nowhere"])
def test_nobody_is_answered_without_the_key(server: ServerProcess, path: str, headers: dict[str, str]) -> None:
    assert within(lambda: post(server, path, {"input_ids": [1]}, headers))[0] == 401


def test_a_key_is_made_and_printed_behind_the_address(old: Weights) -> None:
    environment = {name: value for name, value in os.environ.items() if name != RUN_KEY}
    output, its_output = pipe()
    process = Fork("arl.cli", ["serve", old.path, "--port", "0", "--slots", "2"], environment, output=its_output)
    ready = next(line for line in output if line.startswith("ready "))
    found = re.fullmatch(r"ready (http://127\.0\.0\.1:\d+) with Authorization: (Bearer [0-9a-f]{48})\n", ready)
    assert found is not None, ready
    server = ServerProcess(found[1], process, 0.0, threading.current_thread())
    body = {"input_ids": [[1]], "rid": ["r"], "sampling_params": [SAMPLING]}
    assert within(lambda: post(server, "/generate", body, {}))[0] == 401
    assert within(lambda: post(server, "/generate", body, {"Authorization": found[2]}))[0] == 200
    assert server.end() == 0
