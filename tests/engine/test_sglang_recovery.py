"""A run goes on when its real SGLang server is killed."""

import json
import re
from pathlib import Path

import psutil
import pytest

from tests.processes import survivors
from tests.run.test_train import Command


@pytest.mark.sglang
def test_a_run_whose_sglang_server_is_killed_says_so_and_goes_on_with_another_one(
    sglang_python: str, tmp_path: Path
) -> None:
    recipe = (Path(__file__).parents[2] / "recipes" / "quickstart-sglang.yaml").read_text()
    short = (
        "name=small",
        "train.steps=8",
        "eval.problems=64",
        "deadlines.startup=600",
        f"engine.python={sglang_python}",
    )
    command = Command(tmp_path, *short, recipe=recipe)
    try:
        command.read_until("step    2")
        tree = psutil.Process(command.process.pid).children(recursive=True)
        victim = next(p for p in tree if any("server_process.py" in word for word in p.cmdline()))
        victim.kill()
        assert command.end() == 0, command.output
    finally:
        command.clear()
    line = (
        rf"engine-0 \(pid {victim.pid}\) was killed by SIGKILL.*; restarted in \d+\.\d s at version \d+; \d+ requests"
    )
    assert re.search(line, command.output), command.output
    summary = json.loads((command.run / "summary.json").read_text())
    assert summary["groups"] == {"trained": 8 * 32, "in flight": 0}
    assert not survivors(tree)
    assert not command.weights_left()
