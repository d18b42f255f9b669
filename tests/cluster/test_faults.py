"""Runs over several nodes whose processes and links fail at random: each finishes, after resumes that lose nothing.

More runs, longer ones, and cuts of 100 s: ARL_TEST_FAULT_RUNS=20 ARL_TEST_FAULT_STEPS=200 pytest -m long FILE, or
`python -m tests.cluster.fault_bench`, whose record is in docs/benchmarks/faults.json.
"""

import os
from pathlib import Path

import pytest

from tests.cluster.audit import violations
from tests.cluster.faults import Fault, describe, draw_faults, every_fault
from tests.cluster.faulty_run import FaultyRun
from tests.cluster.slurm_cluster import missing_for_slurm, slurm_cluster

SEED = int(os.environ.get("ARL_TEST_FAULT_SEED", "301"))
RUNS = int(os.environ.get("ARL_TEST_FAULT_RUNS", "1"))
STEPS = int(os.environ.get("ARL_TEST_FAULT_STEPS", "40"))
QUICK_SECONDS = 1.0  # the longest cut where a test may take a minute


def faults_of_runs() -> list[list[Fault]]:
    longest = None if RUNS > 1 else QUICK_SECONDS
    return draw_faults(SEED, RUNS, STEPS, longest=longest)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(missing_for_slurm() is not None, reason=str(missing_for_slurm()))
@pytest.mark.parametrize("number", range(RUNS))
def test_a_run_with_faults_finishes_and_loses_nothing_and_leaves_nothing(tmp_path: Path, number: int) -> None:
    faults = faults_of_runs()[number]
    print(f"seed {SEED}, run {number}: {describe(faults)}")  # shown if it fails
    with slurm_cluster(tmp_path / "slurm") as cluster:
        run = FaultyRun(cluster, tmp_path / "work", faults, STEPS, SEED + number)
        run.to_the_end()
        assert not violations(run, cluster)
        assert sum(len(attempt.hits) for attempt in run.attempts) == len(faults)


def test_faults_repeat_with_their_seed_and_spare_nobody() -> None:
    first = draw_faults(5, num_runs=20, steps=200)
    assert first == draw_faults(5, num_runs=20, steps=200)
    assert first != draw_faults(6, num_runs=20, steps=200)
    drawn = {(fault.action, fault.role, fault.seconds) for run in first for fault in run}
    assert drawn == {(fault.action, fault.role, fault.seconds) for fault in every_fault()}
    assert all(fault.step < 200 for run in first for fault in run)
