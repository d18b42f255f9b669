"""The command line of an SGLang server, and where it lives."""

import socket
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Literal

import pytest

from arl.config.engine_section import EngineConfig
from arl.data.model_limits import Limits
from arl.engine.sglang import server_command
from arl.engine.sglang.server_process import home
from arl.launch.base import Resources


@pytest.mark.parametrize(
    ("resources", "expected"),
    [(Resources(1, ("0",), True), True), (Resources(1, ("0",)), False), (Resources(1, (), True), False)],
)
def test_memory_can_be_given_up_where_a_gpu_has_two_users(resources: Resources, expected: bool) -> None:
    """Nowhere else: it forbids SGLang some of its own economies."""
    argv = server_command.command(
        EngineConfig(kind="sglang"), "python", "model", 0, resources, Limits(100, 512), seed=0
    )
    assert ("--enable-memory-saver" in argv) == expected


@pytest.mark.parametrize("name", ["NO_PROXY", "no_proxy"])
def test_a_server_asks_itself_directly_however_the_user_spells_what_needs_no_proxy(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for spelling in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(spelling, raising=False)
    monkeypatch.setenv(name, "example.com")
    env = server_command.environment("python", Resources(1))
    assert env["no_proxy"] == env["NO_PROXY"] == "127.0.0.1,example.com"


def test_its_sockets_fit_however_long_the_path_of_temporary_files_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with tempfile.TemporaryDirectory(prefix="arl-sglang-", dir=home()) as place, socket.socket(socket.AF_UNIX) as one:
        one.bind(f"{place}/tmp12345678")


@pytest.mark.parametrize(("dtype", "told"), [("float32", ["triton"]), ("bfloat16", [])])
def test_float32_on_a_gpu_asks_for_an_attention_that_takes_it(
    dtype: Literal["float32", "bfloat16"], told: list[str]
) -> None:
    config = EngineConfig(kind="sglang", dtype=dtype)
    argv = server_command.command(config, "python", "model", 0, Resources(1, ("0",)), Limits(100, 512), seed=0)
    assert [value for flag, value in pairwise(argv) if flag == "--attention-backend"] == told
