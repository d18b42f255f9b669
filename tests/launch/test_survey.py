"""A node that does not answer the survey of a Slurm job is named, with what to try, or with what srun says of it."""

import subprocess
from pathlib import Path

import pytest

from arl.config.cluster_section import Cluster
from arl.errors import InputError
from arl.launch.slurm.allocation import Allocation
from arl.launch.slurm.survey import survey

JOB = Allocation("7", ("n1", "n2"))


@pytest.fixture(autouse=True)
def _on_the_first_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n1")


def test_silence_is_refused_with_a_command_that_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: list[str], timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(
        InputError, match=r"n1, n2 have not answered within 300 s; try `srun .*--nodelist=n1,n2 "
    ) as got:
        survey(JOB, Cluster(nodes=2), tmp_path)
    assert str(got.value).endswith(" hostname`")
    assert "/bin/sh" not in str(got.value)


def test_of_a_node_that_prints_nothing_the_error_of_srun_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        said = "srun: error: Node failure on n2"
        return subprocess.CompletedProcess(command, 1, "n1: a line of another program", said)

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(InputError, match=r"node n2: arl does not run there \(srun: error: Node failure on n2\)"):
        survey(JOB, Cluster(nodes=2), tmp_path)
