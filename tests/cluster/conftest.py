"""Start clusters for tests; where a host cannot, the tests are skipped and say why."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.slurm_cluster import SlurmCluster, missing_for_slurm, slurm_cluster


@pytest.fixture
def start_slurm(tmp_path: Path) -> Iterator[Callable[..., SlurmCluster]]:
    """Return what starts a Slurm cluster; it is gone after the test."""
    missing = missing_for_slurm()
    if missing is not None:
        pytest.skip(missing)
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(slurm_cluster(tmp_path / "slurm", **options))


@pytest.fixture
def slurm(start_slurm: Callable[..., SlurmCluster]) -> SlurmCluster:
    """Return a Slurm cluster of three nodes."""
    return start_slurm()
