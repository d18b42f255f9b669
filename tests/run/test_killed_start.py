"""Nothing of a run outlives a controller that is killed at any moment of its start."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import psutil
import pytest

from tests.processes import left_behind
from tests.run.test_train import RECIPE, REWARDS, held_folders
from tests.storm.run_processes import processes_of_run, start_marked

SETTINGS = ("train.ranks=2", "engine.replicas=2", "eval.every=2", "eval.suites=[held_out]", "train.steps=4")
# These end by themselves when their connection to the controller ends, because they have to clean up then. A runner
# has not yet asked the kernel to die with the controller: it looks for it first.
CLEANERS = ("reward worker", "guard", "runner")
LONGEST_START = 12.0  # seconds, on an idle machine


@pytest.mark.slow
def test_what_a_controller_has_started_dies_with_it_at_any_moment_of_the_start(tmp_path: Path) -> None:
    """All others are stopped before it is killed: only the kernel can end what cannot run."""
    source = random.Random(os.environ.get("ARL_TEST_SEED", "0"))
    mark = uuid.uuid4().hex
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "mine.py").write_text(REWARDS)
    flags = [part for setting in SETTINGS for part in ("--set", setting)]
    argv = [sys.executable, "-m", "arl.cli", "train", "recipe.yaml", *flags]
    controller = start_marked(argv, mark, tmp_path, tmp_path / "output.txt")
    with contextlib.suppress(subprocess.TimeoutExpired):
        controller.wait(source.uniform(0.0, LONGEST_START))
    os.kill(controller.pid, signal.SIGSTOP)  # it starts nothing more
    others = [each for each in processes_of_run(mark) if each.process.pid != controller.pid]
    own = list(held_folders(controller.pid))
    for each in others:
        with contextlib.suppress(psutil.Error):
            each.process.send_signal(signal.SIGSTOP)
    controller.kill()
    controller.wait()
    _, alive = psutil.wait_procs([each.process for each in others if each.role not in CLEANERS], timeout=30)
    assert not [process.cmdline() for process in alive if process.status() != psutil.STATUS_ZOMBIE]
    for each in others:
        with contextlib.suppress(psutil.Error):
            each.process.send_signal(signal.SIGCONT)
    assert not left_behind(mark)
    assert not [path for path in own if path.exists()]
