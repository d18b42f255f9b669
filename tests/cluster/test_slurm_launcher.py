"""Processes on the nodes of a real Slurm job: their ends are reported as exactly as those of this machine."""

import sys
from pathlib import Path

import pytest

from tests.cluster.scenario import assert_as_documented, kill_controller, read_lines
from tests.cluster.slurm_cluster import SlurmCluster, wait_for

pytestmark = pytest.mark.slow
ON_N1 = ("srun", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist=n1", "--unbuffered")
SCENARIO = (sys.executable, "-m", "tests.cluster.scenario", "slurm")


def test_processes_on_other_nodes_start_end_and_are_lost_as_documented(slurm: SlurmCluster, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    log = tmp_path / "scenario.log"
    command = ("salloc", "--no-kill", "--nodes=3", *ON_N1, *SCENARIO, str(directory))
    running = slurm.head.start_process(command, log)
    wait_for(lambda: "kill n2" in log.read_text() or running.poll() is not None, "the scenario", 200)
    slurm.nodes["n2"].kill()
    assert running.wait(120) == 0, log.read_text()
    addresses = {name: machine.address for name, machine in slurm.nodes.items()}
    killed = "was killed by SIGKILL"
    assert_as_documented(read_lines(log), addresses, runner=killed, lost="was lost: node n2 has failed")
    slurm.wait_for_idle_nodes()


def test_when_the_controller_is_killed_its_processes_end_though_the_job_goes_on(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    log = tmp_path / "scenario.log"
    slurm.run("salloc", "--no-shell", "--nodes=3")
    all_nodes = ("env", "SLURM_JOB_NODELIST=n[1-3]")  # srun from outside of the job names its own node there
    slurm.head.start_process([*ON_N1, "--jobid=1", *all_nodes, *SCENARIO, str(directory)], log)
    wait_for(lambda: "kill n2" in log.read_text(), "the scenario", 200)
    kill_controller(slurm.nodes["n1"])
    slurm.wait_for_idle_nodes()
    assert slurm.job_state("1") == "RUNNING"
