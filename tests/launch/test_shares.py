"""Cores and devices of a machine are divided between the runs of a sweep."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.errors import InputError
from arl.launch.base import Command
from arl.launch.process import start_process
from arl.launch.shares import Share, divide


@given(jobs=st.integers(1, 12), cores=st.integers(1, 40))
def test_every_run_has_equally_many_cores_and_few_are_left_over(jobs: int, cores: int) -> None:
    shares = divide(jobs, range(cores))
    used = [core for share in shares for core in share.cores]
    sizes = [len(share.cores) for share in shares]
    assert len(shares) == jobs
    assert len(set(sizes)) == 1
    assert sizes[0] >= 1
    left_over = set(range(cores)) - set(used)
    assert len(left_over) < jobs
    uses = [used.count(core) for core in set(used)]
    assert max(uses) - min(uses) <= (jobs > cores)


@given(jobs=st.integers(1, 8), devices=st.integers(1, 16))
def test_a_device_belongs_to_one_run_alone(jobs: int, devices: int) -> None:
    names = [f"GPU-{number}" for number in range(devices)]
    if jobs > devices:
        with pytest.raises(InputError, match=f"--jobs {jobs}: .* {devices} are visible; give --jobs {devices}"):
            divide(jobs, [0, 1], names)
        return
    used = [device for share in divide(jobs, [0, 1], names) for device in share.devices]
    assert used == names


def test_a_share_hides_the_other_devices_from_its_run() -> None:
    assert Share((), ("2", "3")).environment == {"CUDA_VISIBLE_DEVICES": "2,3"}
    assert Share().environment == {}


def test_a_run_stays_on_the_cores_of_its_share(tmp_path: Path) -> None:
    core = max(os.sched_getaffinity(0))
    probe = "import os; print(os.sched_getaffinity(0), os.environ.get('ARL_CORES'))"
    log = tmp_path / "probe.log"

    async def run() -> None:
        command = Command((sys.executable, "-c", probe), Share((core,)).environment)
        process = await start_process("probe", command, log, None)
        await process.finished(60)

    asyncio.run(run())
    assert log.read_text() == f"{{{core}}} None\n"
