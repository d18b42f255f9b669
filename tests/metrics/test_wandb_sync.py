"""wandb's own client uploads a resumed run as one run; only its server is a stand-in."""

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from arl.metrics.names import Record
from tests.metrics import wandb_file
from tests.metrics.fake_wandb_server import FakeWandbServer, fake_wandb_server
from tests.metrics.tracked_runs import step_record

PART = """
import os, signal, sys
from pathlib import Path
import wandb
from arl.metrics.wandb_tracker import WandbTracker
from tests.metrics.tracked_runs import step_record, tracked_run

mode, cut, last, shift, end = sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]), sys.argv[6]
past = [step_record(step) for step in range(1, cut + 1)]
tracker = WandbTracker(tracked_run(Path(sys.argv[1]), past, note=print, wandb=mode))
for step in range(cut + 1, last + 1):
    tracker.log(step_record(step, shift=shift))
if end == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
tracker.close()
"""


class SyncedRun:
    """A run whose parts are processes of their own, with a server that they may reach."""

    def __init__(self, directory: Path, server: FakeWandbServer) -> None:
        self.directory = directory
        self.server = server
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("WANDB")},
            "WANDB_BASE_URL": server.url,
            "WANDB_API_KEY": "0" * 40,
            "HOME": str(directory),
            "WANDB_DIR": str(directory),  # of its own logs, which it would write to the current directory
        }

    def part(self, mode: str, cut: int, last: int, shift: float = 0.0, end: str = "closed") -> str:
        """Log steps `cut` + 1 … `last` after a resume from step `cut`; return what was printed."""
        arguments = [str(self.directory), mode, str(cut), str(last), str(shift), end]
        return self._run([sys.executable, "-c", PART, *arguments], -9 if end == "killed" else 0)

    def sync(self) -> None:
        parts = map(str, self.directory.glob("wandb/offline-run-*"))
        self._run([sys.executable, "-m", "wandb", "sync", *parts], 0)

    def _run(self, command: list[str], code: int) -> str:
        done = subprocess.run(
            command,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, done.stdout
        return done.stdout

    def records(self) -> list[Record]:
        return [wandb_file.record_of(row) for row in self.server.rows]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[SyncedRun]:
    with fake_wandb_server() as server:
        yield SyncedRun(tmp_path, server)


BEFORE = [step_record(step) for step in range(1, 5)]
AGAIN = [step_record(step, shift=0.25) for step in range(5, 10)]


def test_a_run_that_was_killed_offline_and_resumed_is_synced_as_one_run(run: SyncedRun) -> None:
    run.part("offline", cut=0, last=7, end="killed")
    run.part("offline", cut=4, last=9, shift=0.25)
    run.sync()
    assert run.records() == BEFORE + AGAIN
    assert run.server.summary["final/step"] == 9


def test_a_run_that_was_killed_online_before_anything_arrived_loses_no_row(run: SyncedRun) -> None:
    run.part("online", cut=0, last=7, end="killed")
    already = run.records()
    run.part("online", cut=4, last=9, shift=0.25)
    steps = [record["step"] for record in run.records()]
    assert steps == list(range(1, 10))
    assert run.records()[len(already) :] == (BEFORE + AGAIN)[len(already) :]


@pytest.mark.parametrize("later", ["offline", "online"])
def test_what_was_uploaded_before_a_resume_stays_and_is_not_uploaded_twice(run: SyncedRun, later: str) -> None:
    run.part("offline", cut=0, last=7)
    run.sync()
    printed = run.part(later, cut=4, last=9, shift=0.25)
    if later == "offline":
        run.sync()
    kept = [step_record(step) for step in range(1, 8)]
    assert run.records() == [*kept, *AGAIN[3:]]
    assert printed.count("wandb keeps the rows that it had of step 5 and later") == 1


@pytest.mark.parametrize("mode", ["offline", "online"])
def test_without_a_key_nothing_is_asked_even_in_a_terminal(run: SyncedRun, mode: str) -> None:
    terminal, inside = pty.openpty()
    arguments = [str(run.directory), mode, "0", "3", "0", "closed"]
    started = subprocess.Popen(
        [sys.executable, "-c", PART, *arguments],
        env={name: value for name, value in run.environment.items() if name != "WANDB_API_KEY"},
        stdin=inside,
        stdout=subprocess.PIPE,
        stderr=inside,
        text=True,
    )
    os.close(inside)
    printed, _ = started.communicate(timeout=120)  # a prompt would wait for ever
    os.close(terminal)
    assert started.returncode == 0
    assert ("No API key configured" in printed) == (mode == "online")
    assert wandb_file.logged_records(run.directory) == BEFORE[:3]
