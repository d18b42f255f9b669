"""`arl train` with an SGLang that is missing or misbehaves: one message, the log's last lines, nothing left running."""

import asyncio
import os
import re
import subprocess
from pathlib import Path

import pytest

from arl.config.recipe import Recipe, TinyModel
from arl.engine.sglang.server_command import CHILD
from arl.errors import ProcessDied
from arl.launch.base import Resources
from arl.launch.child import RUN_KEY
from arl.launch.local import LocalLauncher
from arl.launch.network import new_key
from arl.launch.run_secrets import RunSecrets
from arl.models.tiny import make_tiny_model
from arl.run.engine_pool import open_engine_pool
from arl.run.failures import explain_deaths, reported_failures
from arl.run.processes import EngineServers
from arl.tasks.running_checksum import CHARACTERS
from arl.types import StartingVersions
from tests.fake_sglang import make_fake_sglang
from tests.forks import arl
from tests.processes import MARK, left_behind

RECIPE = """\
name: small
model:
  tiny: {hidden_size: 32, layers: 1, heads: 2, intermediate_size: 64}
data: {task: running_checksum, options: {size: 2000}}
rollout: {problems_per_step: 4, group_size: 4, max_new_tokens: 24}
train: {steps: 1, minibatches: 2, learning_rate: 1.5e-4}
engine: {kind: sglang}
eval: {problems: 8}
"""


def train(directory: Path, *overrides: str) -> tuple[int, str]:
    """Exit code and output; every process it started is gone by then."""
    (directory / "recipe.yaml").write_text(RECIPE)
    flags = [part for override in overrides for part in ("--set", override)]
    env = {**os.environ, MARK: str(directory), "ARL_CACHE": str(directory / "cache")}
    done = arl("train", "recipe.yaml", *flags, cwd=directory, env=env)
    assert not left_behind(str(directory))
    assert "Traceback" not in done.stderr.partition("The end of")[0]
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("fault", "last_line"),
    [
        ("refuse", "ValueError: Model architectures ['FancyForCausalLM'] are not supported"),
        ("die", "fake scheduler: out of memory"),
    ],
)
def test_a_server_that_misbehaves_ends_the_run_with_one_message(tmp_path: Path, fault: str, last_line: str) -> None:
    code, output = train(tmp_path, f"engine.python={make_fake_sglang(tmp_path)}", f"engine.args=[--fault, {fault}]")
    assert code == 3
    assert "engine-0 (pid" in output
    assert last_line in output


def test_a_server_that_is_never_ready_ends_the_run_with_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside nothing else that could miss one."""
    monkeypatch.setenv(MARK, str(tmp_path))
    make_tiny_model(TinyModel(), CHARACTERS, 0, tmp_path / "model")
    engine = {"kind": "sglang", "python": make_fake_sglang(tmp_path), "args": ["--fault", "deaf"]}
    given = {"model": {"path": "m"}, "data": {"task": "running_checksum"}, "engine": engine}
    recipe = Recipe.model_validate(given | {"deadlines": {"startup": 1}})

    async def main() -> None:
        async with reported_failures(), LocalLauncher(tmp_path, 2.0) as processes, explain_deaths(processes):
            versions = StartingVersions(str(tmp_path / "model"))
            servers = EngineServers(recipe, versions, {0: Resources(1)}, processes, RunSecrets(new_key()))
            async with open_engine_pool(servers, await servers.start_all(), print):
                raise AssertionError("it opened")

    with pytest.raises(ProcessDied, match=r"launcher waited 1 s for engine-0 \(pid \d+\) to be ready"):
        asyncio.run(main())
    assert not left_behind(str(tmp_path))


@pytest.mark.sglang
def test_a_real_server_that_refuses_to_start_ends_the_run_with_its_own_words(
    sglang_python: str, tmp_path: Path
) -> None:
    overrides = (f"engine.python={sglang_python}", "engine.args=[--quantization, awq]", "deadlines.startup=600")
    code, output = train(tmp_path, *overrides)
    assert code == 3, output
    assert "arl: engine-0 (pid" in output
    assert "Cannot find the config file for awq" in output


def test_a_server_says_that_it_is_ready_on_a_line_of_its_own_whatever_sglang_is_printing(tmp_path: Path) -> None:
    options = "--host 127.0.0.1 --port 0 --tp-size 1 --weight-version 0 --fault talk"
    argv = [make_fake_sglang(tmp_path), str(CHILD), *options.split()]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, env={**os.environ, RUN_KEY: "k", "SGLANG_USE_CPU_ENGINE": "1"}
    ) as child:
        assert child.stdout is not None
        try:
            line = next(line for line in child.stdout if b"ready http" in line)
        finally:
            child.kill()
            child.stdout.read()  # until its guard is done
    assert re.fullmatch(rb"ready http://127\.0\.0\.1:\d+\n", line)
