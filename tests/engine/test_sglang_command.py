"""Check the command line and the environment of an SGLang server."""

import socket
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from arl.config.recipe import Recipe, TinyModel
from arl.engine.backend import ServerSpec
from arl.engine.sglang import server_command
from arl.engine.sglang.server_process import home
from arl.launch.base import Resources
from arl.models.tiny import make_tiny_model
from arl.tasks.running_checksum import CHARACTERS
from arl.types import StartingVersions


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


@pytest.mark.parametrize(
    ("share", "expected"),
    [(Resources(1, ("0",), True), True), (Resources(1, ("0",)), False), (Resources(1, (), True), False)],
)
def test_memory_can_be_released_where_a_gpu_has_two_users(model: str, share: Resources, expected: bool) -> None:
    """Nowhere else: it forbids SGLang some of its own economies."""
    argv = server_command.command(spec(model, share), "python")
    assert ("--enable-memory-saver" in argv) == expected


def test_a_flag_of_the_user_comes_last_and_so_overrides_that_of_a_cpu(model: str) -> None:
    argv = server_command.command(spec(model, Resources(1), args=["--mem-fraction-static", 0.8]), "python")
    given = [value for flag, value in pairwise(argv) if flag == "--mem-fraction-static"]
    assert given == ["0.1", "0.8"]


@pytest.mark.parametrize("name", ["NO_PROXY", "no_proxy"])
def test_a_server_asks_itself_directly_however_the_user_spells_what_needs_no_proxy(
    monkeypatch: pytest.MonkeyPatch, model: str, name: str
) -> None:
    for spelling in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(spelling, raising=False)
    monkeypatch.setenv(name, "example.com")
    env = server_command.environment(spec(model, Resources(1)), "python")
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
    model: str, dtype: Literal["float32", "bfloat16"], told: list[str]
) -> None:
    argv = server_command.command(spec(model, Resources(1, ("0",)), dtype=dtype), "python")
    assert [value for flag, value in pairwise(argv) if flag == "--attention-backend"] == told


@pytest.mark.parametrize(("head", "expected"), [("float32", True), ("auto", False)])
def test_one_setting_widens_the_logits_of_both_sides(model: str, head: str, expected: bool) -> None:
    server = spec(model, Resources(1))
    train = server.recipe.train.model_copy(update={"head": head})
    recipe = server.recipe.model_copy(update={"train": train})
    argv = server_command.command(msgspec.structs.replace(server, recipe=recipe), "python")
    assert ("--enable-fp32-lm-head" in argv) == expected
