"""In a shell of `salloc` on a login node, which is none of the job, `arl train` runs at once, as if it were there."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster.slurm_cluster import SlurmCluster, wait_for
from tests.cluster.slurm_job import wait_for_idle_nodes, write_small_recipe
from tests.cluster.trained_once import assert_trained_once

SALLOC = ("salloc", "--no-kill", "--nodes=3")
TRAIN = (sys.executable, "-m", "arl.cli", "train")
RUN_SECONDS = 300.0


class Session:
    """Hold `arl train` in an allocation, and what a terminal, or two pipes, have shown of it.

    Args:
        process: salloc, on the login node.
        output: descriptor of its output, or of the other side of its terminal.
        runs: output.directory of the recipe.
    """

    def __init__(self, cluster: SlurmCluster, process: "subprocess.Popen[bytes]", output: int, runs: Path) -> None:
        self.cluster = cluster
        self.process = process
        self.runs = runs
        self._output = output
        self._shown = b""
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    @property
    def shown(self) -> str:
        """Return all output so far."""
        return self._shown.decode(errors="replace")

    def wait_for(self, text: str) -> None:
        """Wait until it has shown `text`."""
        wait_for(lambda: text in self.shown or self.process.poll() is not None, text, RUN_SECONDS)
        assert text in self.shown, self.shown

    def wait_for_checkpoint(self) -> None:
        """Wait until the run has a checkpoint."""
        wait_for(lambda: any(self.runs.glob("*/checkpoints/step_*")), "a checkpoint", RUN_SECONDS)

    def press(self, key: bytes) -> None:
        """Press a key of the terminal."""
        os.write(self._output, key)

    def end(self) -> int:
        """Wait for its end, check that nothing is left, and return the exit code."""
        code = self.process.wait(RUN_SECONDS)
        self._reading.join(30)
        wait_for_idle_nodes(self.cluster)
        assert [path.name for path in self.runs.parent.glob("**/first-node-*")] == []
        return code

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # Linux says so of a terminal that nobody holds open any more
            while piece := os.read(self._output, 1 << 16):
                self._shown += piece


@contextlib.contextmanager
def train_in_allocation(
    cluster: SlurmCluster, directory: Path, *options: str, in_terminal: bool = False
) -> Iterator[Session]:
    """Type `arl train` in a shell of salloc on the login node."""
    runs = directory / "runs"
    train = [*TRAIN, str(write_small_recipe(directory)), "--set", f"output.directory={runs}", *options]
    command = cluster.head.entering([*SALLOC, *train], {**cluster.environment, "TERM": "xterm", "COLUMNS": "100"})
    if in_terminal:
        output, given = pty.openpty()
        command = ["setsid", "--ctty", *command]
        process = subprocess.Popen(command, stdin=given, stdout=given, stderr=given)
    else:
        output, given = os.pipe()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=given, stderr=given)
    os.close(given)
    try:
        yield Session(cluster, process, output, runs)
    finally:
        process.kill()
        process.wait(60)
        os.close(output)


def front(cluster: SlurmCluster) -> psutil.Process:
    """Return the process of `arl train` on the login node."""
    (found,) = [p for p in cluster.head.processes() if p.name().startswith("python") and "train" in p.cmdline()]
    return found


@pytest.mark.slow
def test_on_a_terminal_it_shows_the_dashboard_and_ctrl_c_saves_a_checkpoint(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    endless = ("--set", "train.steps=100000")
    with train_in_allocation(slurm, tmp_path, *endless, in_terminal=True) as session:
        session.wait_for("controller")  # a row of the dashboard
        session.wait_for_checkpoint()
        session.press(b"\x03")
        session.wait_for("stopping: the step in progress ends")
        session.wait_for("stopped at version")
        assert session.end() == 130


@pytest.mark.long
def test_without_a_terminal_it_prints_lines_and_its_exit_code_is_the_runs(slurm: SlurmCluster, tmp_path: Path) -> None:
    with train_in_allocation(slurm, tmp_path, "--set", "train.steps=5") as session:
        assert session.end() == 0, session.shown
        assert "\nstep    5" in session.shown
        assert "\x1b" not in session.shown
        (run,) = session.runs.iterdir()
        assert_trained_once(run, steps=5)


@pytest.mark.long
def test_sigterm_to_it_saves_a_checkpoint(slurm: SlurmCluster, tmp_path: Path) -> None:
    with train_in_allocation(slurm, tmp_path, "--set", "train.steps=100000") as session:
        session.wait_for_checkpoint()
        front(slurm).send_signal(signal.SIGTERM)
        assert session.end() == 130, session.shown
        assert "stopped at version" in session.shown


@pytest.mark.long
def test_what_the_first_node_refuses_is_said_here_with_its_exit_code(slurm: SlurmCluster, tmp_path: Path) -> None:
    with train_in_allocation(slurm, tmp_path, "--nodes", "4") as session:
        assert session.end() == 2, session.shown
        assert "cluster.nodes 4: job 1 has 3 (n1, n2, n3)" in session.shown


@pytest.mark.long
def test_the_loss_of_the_first_node_is_an_error_and_no_success(slurm: SlurmCluster, tmp_path: Path) -> None:
    with train_in_allocation(slurm, tmp_path, "--set", "train.steps=100000") as session:
        session.wait_for_checkpoint()
        slurm.kill("n1")
        assert session.end() == 3, session.shown
        assert "the controller on n1 is lost" in session.shown


@pytest.mark.long
def test_the_runs_of_a_sweep_take_turns_in_one_allocation(slurm: SlurmCluster, tmp_path: Path) -> None:
    sweep = (sys.executable, "-m", "arl.cli", "sweep", str(write_small_recipe(tmp_path)), "--name", "study")
    settings = ("--set", f"output.directory={tmp_path / 'runs'}", "--set", "train.steps=3")
    on_first_node = ("srun", "--overlap", "--nodes=1", "--ntasks=1")
    command = [*SALLOC, *on_first_node, *sweep, *settings, "--axis", "rollout.staleness=1,2"]
    done = subprocess.run(
        slurm.head.entering(command, slurm.environment),
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summaries = sorted(path.parent for path in (tmp_path / "runs").rglob("summary.json"))
    assert len(summaries) == 2
    for run in summaries:
        assert_trained_once(run, steps=3)
    wait_for_idle_nodes(slurm)
