"""`arl train` with an SGLang that is missing or misbehaves: one message, the log's last lines, nothing left running."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from arl.launch.sglang import CHILD
from tests.fake_sglang import make_fake_sglang

RECIPE = """\
name: small
model:
  tiny: {hidden_size: 32, layers: 1, heads: 2, intermediate_size: 64}
data: {task: running_checksum, size: 2000}
rollout: {problems_per_step: 4, group_size: 4, max_new_tokens: 24}
train: {steps: 1, minibatches: 2}
engine: {kind: sglang}
eval: {problems: 8}
deadlines: {startup: 30, shutdown: 2}
"""


def train(directory: Path, *overrides: str) -> tuple[int, str]:
    """Exit code and output; every process it started is gone by then."""
    (directory / "recipe.yaml").write_text(RECIPE)
    flags = [part for override in overrides for part in ("--set", override)]
    marker = f"ARL_TEST={directory}"
    done = subprocess.run(
        [sys.executable, "-m", "arl.cli", "train", "recipe.yaml", *flags],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "ARL_TEST": str(directory), "ARL_CACHE": str(directory / "cache")},
    )
    left = [p for p in psutil.process_iter() if marker in environment_of(p)]
    assert not psutil.wait_procs(left, timeout=5)[1]
    assert "Traceback" not in done.stderr.partition("The end of")[0]
    return done.returncode, done.stderr


def environment_of(process: psutil.Process) -> list[str]:
    try:
        return [f"{name}={value}" for name, value in process.environ().items()]
    except psutil.Error:
        return []


def test_an_interpreter_without_sglang_is_refused_with_the_commands_that_install_it(tmp_path: Path) -> None:
    code, output = train(tmp_path, f"engine.python={sys.executable}")
    assert code == 2
    assert f"engine.python {sys.executable}: there is no SGLang in it" in output
    assert "pip install sglang==" in output
    assert not (tmp_path / "runs").exists()


def test_keep_is_refused_by_name_where_sglang_is_too_old_for_it(tmp_path: Path) -> None:
    code, output = train(tmp_path, f"engine.python={make_fake_sglang(tmp_path, '0.5.17')}", "engine.kv_policy=keep")
    assert code == 2
    assert "engine.kv_policy keep: SGLang 0.5.17" in output


@pytest.mark.parametrize(
    ("fault", "message", "last_line"),
    [
        ("refuse", "engine-0 (pid", "ValueError: Model architectures ['FancyForCausalLM'] are not supported"),
        ("garbage", "this is no server-sent event: b'<html>proxy error</html>'", "fake scheduler: got /generate"),
        ("half", "/generate: ClientPayloadError", "fake scheduler: got /generate"),
        ("die", "engine-0 (pid", "fake scheduler: out of memory"),
        ("unversioned", "start SGLang with --weight-version 0", ""),
        ("deaf", "launcher waited 5 s for engine-0 to be ready", ""),
    ],
)
def test_a_server_that_misbehaves_ends_the_run_with_one_message(
    tmp_path: Path, fault: str, message: str, last_line: str
) -> None:
    startup = 5 if fault == "deaf" else 60
    python = make_fake_sglang(tmp_path)
    code, output = train(
        tmp_path, f"engine.python={python}", f"engine.args=[--fault, {fault}]", f"deadlines.startup={startup}"
    )
    assert code == 3
    assert message in output
    assert last_line in output


def test_a_port_in_use_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, str(CHILD), "--port", str(port)], capture_output=True, text=True, check=False, timeout=30
        )
    assert done.returncode == 1
    assert done.stderr.strip() == f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another port"


@pytest.mark.parametrize(
    ("engine", "complaint"),
    [
        ("{kind: sglang, args: [--port, 3]}", "engine.args --port: arl gives it (always a free one)"),
        ("{args: [--sleep-on-idle]}", "engine.args ('--sleep-on-idle',): only with engine.kind sglang"),
        ("{kind: sglang, tensor_parallel: 2}", "engine.tensor_parallel 2: no GPU is visible"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, complaint: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    code, output = train(tmp_path, f"engine={engine}")
    assert code == 2
    assert complaint in output
