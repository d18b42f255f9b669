"""Nothing of a run outlives a controller that is killed at any moment of its start."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import uuid
from collections.abc import Collection
from pathlib import Path

import psutil
import pytest

from arl.sync.publication_directory import PREFIX, SHARED_MEMORY
from tests.processes import MARK, left_behind
from tests.run.test_train import RECIPE, REWARDS

SETTINGS = ("train.ranks=2", "engine.replicas=2", "eval.every=2", "eval.suites=[held_out]", "train.steps=4")
# These end by themselves when their connection to the controller ends, because they have to clean up then. A runner
# has not yet asked the kernel to die with the controller: it looks for it first.
CLEANERS = ("arl.reward.worker", "scratch_directory.py", "child.py")
WARM = {"quickest": 0.0, "longest": 12.0}  # seconds of a start, on an idle machine
KILLS = 1


@pytest.fixture
def mark() -> str:
    return uuid.uuid4().hex


def of_the_run(mark: str) -> list[psutil.Process]:
    """Return the processes that the run has started, however deep."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def is_cleaner(process: psutil.Process) -> bool:
    try:
        words = process.cmdline()
    except psutil.Error:  # it has ended
        return True
    return not words or any(word.endswith(name) for word in words for name in CLEANERS)


def start_run(directory: Path, mark: str) -> "subprocess.Popen[bytes]":
    (directory / "recipe.yaml").write_text(RECIPE)
    (directory / "mine.py").write_text(REWARDS)
    flags = [part for setting in SETTINGS for part in ("--set", setting)]
    environment = {**os.environ, MARK: mark, "ARL_CACHE": str(directory / "cache")}
    return subprocess.Popen(
        [sys.executable, "-m", "arl.cli", "train", "recipe.yaml", *flags],
        cwd=directory,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def weights() -> Collection[Path]:
    return set(SHARED_MEMORY.glob(f"{PREFIX}-*"))


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(int(os.environ.get("ARL_TEST_KILLED_STARTS", KILLS))))
def test_what_a_controller_has_started_dies_with_it_at_any_moment_of_the_start(
    tmp_path: Path, mark: str, moment: int
) -> None:
    """All others are stopped before it is killed: only the kernel can end what cannot run."""
    source = random.Random(f"{moment} {os.environ.get('ARL_TEST_SEED', '')}")
    controller = start_run(tmp_path, mark)
    with contextlib.suppress(subprocess.TimeoutExpired):
        controller.wait(source.uniform(WARM["quickest"], WARM["longest"]))
    os.kill(controller.pid, signal.SIGSTOP)  # it starts nothing more
    others = [process for process in of_the_run(mark) if process.pid != controller.pid]
    own = {path for path in weights() if holds(controller.pid, path)}
    for process in others:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGSTOP)
    controller.kill()
    controller.wait()
    doomed = [process for process in others if not is_cleaner(process)]
    _, alive = psutil.wait_procs(doomed, timeout=30)
    assert not [process.cmdline() for process in alive if process.status() != psutil.STATUS_ZOMBIE]
    for process in others:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGCONT)
    assert not left_behind(mark)
    assert not [path for path in own if path.exists()]


def holds(pid: int, path: Path) -> bool:
    """Return whether a process has a directory open, as a lock is."""
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if os.readlink(file) == str(path):
                return True
    return False
