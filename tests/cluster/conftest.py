"""Start clusters for tests; where a host cannot, the tests are skipped and say why."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.slurm_cluster import SlurmCluster, missing_for_slurm, slurm_cluster


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[SlurmCluster]:
    """Return a Slurm cluster of three nodes; it is gone after the test."""
    missing = missing_for_slurm()
    if missing is not None:
        pytest.skip(missing)
    with slurm_cluster(tmp_path / "slurm") as running:
        yield running
