"""`arl doctor`: everything there, or what is missing with the commands that bring it."""

import sys
from pathlib import Path

import pytest

from tests.fake_sglang import make_fake_sglang
from tests.forks import ROOT, arl

QUICKSTART = str(ROOT / "recipes/quickstart-sglang.yaml")


def test_this_environment_is_complete() -> None:
    done = arl("doctor")
    assert done.returncode == 0
    assert "MISSING" not in done.stdout
    assert all(word in done.stdout for word in ("Python", "torch", "transformers", "CPU cores", "GPUs"))


def test_an_interpreter_without_sglang_is_told_how_to_get_it() -> None:
    done = arl("doctor", QUICKSTART, "--python", sys.executable)
    assert done.returncode == 2
    assert f"MISSING  engine sglang: engine.python {sys.executable}" in done.stdout
    assert "pip install sglang==" in done.stdout
    assert ".ci/sglang" in done.stdout


@pytest.mark.parametrize("command", ["true", "echo"])
def test_a_command_that_is_no_python_is_not_taken_for_one_with_sglang(command: str) -> None:
    done = arl("doctor", "--python", command)
    assert done.returncode == 2
    assert f"/{command}: there is no SGLang in it" in done.stdout


def test_sglangs_version_and_whether_a_recipe_can_start_are_told(tmp_path: Path) -> None:
    python = make_fake_sglang(tmp_path)
    done = arl("doctor", QUICKSTART, "--set", f"engine.python={python}")
    assert done.returncode == 0, done.stdout
    assert f"engine sglang: SGLang 0.5.20 in {python}" in done.stdout
    assert "recipe quickstart-sglang: it can start" in done.stdout
