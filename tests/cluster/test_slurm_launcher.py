"""Processes on the nodes of a real Slurm job: their ends are reported as exactly as those of this machine."""

import contextlib
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.cluster.scenario import assert_as_documented, read_lines
from tests.cluster.slurm_cluster import SlurmCluster, wait_for
from tests.cluster.slurm_job import run_arl, wait_for_idle_nodes, write_small_recipe

pytestmark = pytest.mark.slow
ON_N1 = ("srun", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist=n1", "--unbuffered")


def test_processes_on_other_nodes_start_end_and_are_lost_as_documented(slurm: SlurmCluster, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    log = tmp_path / "scenario.log"
    command = ["salloc", "--no-kill", "--nodes=3", *ON_N1, sys.executable, "-m", "tests.cluster.scenario", "slurm"]
    running = slurm.head.start_process([*command, str(directory)], log, slurm.environment)
    wait_for(lambda: "kill n2" in log.read_text() or running.poll() is not None, "the scenario", 200)
    slurm.kill("n2")
    assert running.wait(120) == 0, log.read_text()
    addresses = {name: machine.address for name, machine in slurm.nodes.items()}
    killed = "was killed by SIGKILL"
    assert_as_documented(read_lines(log), addresses, runner=killed, lost="was lost: node n2 has failed")
    wait_for_idle_nodes(slurm)


def arl_in_a_job(slurm: SlurmCluster, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run `arl` on the first node of an allocation of three."""
    command = [sys.executable, "-m", "arl.cli", *arguments]
    return slurm.run("salloc", "--no-kill", "--nodes=3", *ON_N1, *command, seconds=300, check=False)


def test_a_directory_that_nodes_do_not_share_is_refused_and_each_node_is_named(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    recipe = str(write_small_recipe(tmp_path))
    done = arl_in_a_job(slurm, "train", recipe, "--set", "output.directory=/dev/shm/runs")
    assert done.returncode == 2, done.stderr
    for node in ("n2", "n3"):
        assert f"node {node}: arl does not run there, or it does not see /dev/shm" in done.stderr
    assert "a file system that all nodes share" in done.stderr


def test_a_job_that_slurm_refuses_is_reported_with_its_reason(slurm: SlurmCluster, tmp_path: Path) -> None:
    recipe = str(write_small_recipe(tmp_path))
    output = f"output.directory={tmp_path}/runs"
    done = run_arl(slurm, "train", recipe, "--set", output, "--sbatch=--partition=no-such-queue")
    assert done.returncode == 2
    assert "invalid partition specified: no-such-queue" in done.stderr


def is_scenario(process: psutil.Process) -> bool:
    """Return whether a process runs tests.cluster.scenario; one that has just ended does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return "tests.cluster.scenario" in process.cmdline()[:3]
    return False


def test_when_the_controller_is_killed_its_processes_end_though_the_job_goes_on(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    log = tmp_path / "scenario.log"
    slurm.run("salloc", "--no-shell", "--nodes=3")
    all_nodes = ("env", "SLURM_JOB_NODELIST=n[1-3]")  # srun from outside of the job names its own node there
    command = [*ON_N1, "--jobid=1", *all_nodes, sys.executable, "-m", "tests.cluster.scenario", "slurm", str(directory)]
    slurm.head.start_process(command, log, slurm.environment)
    wait_for(lambda: "kill n2" in log.read_text(), "the scenario", 200)
    controllers = [process for process in slurm.nodes["n1"].processes() if is_scenario(process)]
    assert len(controllers) == 1
    controllers[0].kill()
    wait_for_idle_nodes(slurm)
    assert slurm.job_state("1") == "RUNNING"
