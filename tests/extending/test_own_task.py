"""The page on a task of one's own does what it says: its files are written, and its commands run in their order."""

import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from arl.cli import app
from tests.forks import ROOT

PAGE = (ROOT / "docs" / "own-task.md").read_text()
FILE = re.compile(r"```(?:python|yaml)\n# (\w+\.\w+)\n(.*?)```", re.DOTALL)
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
SMALL = {  # in a few seconds, in this process
    "sft": ["--batch-size", "2"],
    "train": [
        "--set=world=virtual",
        "--set=train.steps=1",
        "--set=train.minibatches=1",
        "--set=rollout.problems_per_step=2",
        "--set=rollout.group_size=2",
        "--set=eval.problems=4",
    ],
    "samples": [],
    "report": [],
    "eval": ["--problems", "4", "--max-new-tokens", "8"],
}
PROGRAMS = {"python": [], "arl": ["-m", "arl.cli"]}
ACCURACY = re.compile(r"accuracy +(0\.\d+) → (0\.\d+)")


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Enter a directory with the files of the page."""
    for name, text in FILE.findall(PAGE):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ARL_CACHE", str(tmp_path / "cache"))
    yield tmp_path
    if dist.is_initialized():
        dist.destroy_process_group()


def test_every_command_of_the_page_is_accepted_and_leaves_what_the_next_one_needs(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in COMMANDS:
        program, *arguments = shlex.split(line.replace("--steps 300", "--steps 2").replace("--wrong ", ""))
        if program == "python":
            runpy.run_path(arguments[0])
            continue
        assert program == "arl"
        small = SMALL[arguments[0]]
        if "reverse_task.yaml" in arguments:
            small = [*small, "--set=warmup=false"]  # it takes a process, and 300 steps
        app([*arguments, *small], standalone_mode=False)
    AutoModelForCausalLM.from_pretrained(page / "tuned")
    assert "held-out problems" in capsys.readouterr().out


@pytest.mark.long
def test_the_curves_of_the_page_rise(page: Path) -> None:
    shown = []
    for line in COMMANDS:
        program, *arguments = shlex.split(line)
        command = [sys.executable, *PROGRAMS[program], *arguments]
        done = subprocess.run(command, cwd=page, capture_output=True, text=True, timeout=1200, check=True)
        shown += ACCURACY.findall(done.stdout)
    assert len(shown) == 2, "by files, and by a task"
    for before, after in shown:
        assert float(after) > float(before) + 0.15
