"""Secrets go with the process that has written them, however it ends."""

import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from arl.launch.private_directory import LOCK, private_directory
from tests.launch.test_file_lock import NOT_A_LOCK, put
from tests.processes import survivors

HOLDER = """
import sys
from pathlib import Path
from arl.launch.private_directory import private_directory

with private_directory(Path(sys.argv[1]), "steps-") as directory:
    (directory / "engine-0.json").write_text("s3cret")
    print(directory, flush=True)
    sys.stdin.read()
"""


class Holder:
    """Run a process that keeps a secret in a private directory of `place`."""

    def __init__(self, place: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.directory = Path(self.process.stdout.readline().strip())
        (self.guard,) = psutil.Process(self.process.pid).children()

    def kill(self) -> None:
        """Kill it, and reap it."""
        self.process.kill()
        self.process.communicate(timeout=60)


def test_only_this_user_reads_it_and_it_is_gone_after_the_block(tmp_path: Path) -> None:
    before = psutil.Process().children()
    with private_directory(tmp_path, "steps-") as directory:
        assert directory.parent == tmp_path
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        (directory / "engine-0.json").write_text("s3cret")
    assert list(tmp_path.iterdir()) == []
    assert not survivors(set(psutil.Process().children()).difference(before))


@pytest.mark.parametrize("also", [[], [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]], ids=["", "after a job's end"])
def test_it_is_gone_when_its_process_was_killed(tmp_path: Path, also: list[int]) -> None:
    holder = Holder(tmp_path)
    assert (holder.directory / "engine-0.json").read_text() == "s3cret"
    for number in also:
        os.kill(holder.guard.pid, number)
    holder.kill()
    assert not survivors([holder.guard])
    assert list(tmp_path.iterdir()) == []


def test_after_the_death_of_a_whole_node_the_next_run_removes_it_and_spares_what_is_in_use(tmp_path: Path) -> None:
    dead = Holder(tmp_path)
    dead.guard.kill()
    dead.kill()
    living = Holder(tmp_path)
    assert not dead.directory.exists()
    with private_directory(tmp_path, "steps-") as directory:
        assert set(tmp_path.iterdir()) == {living.directory, directory}
    living.process.communicate(timeout=60)
    assert list(tmp_path.iterdir()) == []


def test_a_guard_spares_what_another_run_has_made_under_the_same_name(tmp_path: Path) -> None:
    holder = Holder(tmp_path)
    aside = holder.directory.rename(tmp_path / "aside")
    holder.directory.mkdir()
    holder.kill()
    assert not survivors([holder.guard])
    assert holder.directory.exists()
    shutil.rmtree(aside)


@pytest.mark.parametrize("name", NOT_A_LOCK)
def test_a_directory_whose_lock_is_no_regular_file_is_spared(tmp_path: Path, name: str) -> None:
    (tmp_path / "steps-other").mkdir()
    precious = put(name, tmp_path / "steps-other" / LOCK)
    with private_directory(tmp_path, "steps-"):
        assert precious.read_text() == "keep me"
