"""GPUs that torch cannot use are refused, and those of a machine are divided between the runs of a sweep."""

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.errors import InputError
from arl.launch import devices
from arl.launch.devices import (
    VISIBLE_DEVICES,
    divide,
    free_memory,
    refuse_unusable_gpus,
    stay_near_gpu,
    visible_cores,
)
from tests.fake_nvml import fake_nvml

FILES = ("nvidia0", "nvidia1")


def test_gpus_that_torch_does_not_see_are_refused_with_the_remedy_unless_they_are_hidden() -> None:
    with pytest.raises(
        InputError, match=r"GPUs \(nvidia0, nvidia1\), and torch 2\.13\.0\+cpu is built.*whl/cu130"
    ) as caught:
        refuse_unusable_gpus(FILES, 0, "2.13.0+cpu", None, None)
    assert "CUDA_VISIBLE_DEVICES= to compute on the CPU" in str(caught.value)
    for wanted, said in (("7", "is '7'"), (None, "is not set")):
        with pytest.raises(InputError, match=rf"sees none of them \(CUDA_VISIBLE_DEVICES {said}\)"):
            refuse_unusable_gpus(FILES, 0, "2.13.0+cu130", "13.0", wanted)
    for hiding in ("", "-1", "NoDevFiles"):
        refuse_unusable_gpus(FILES, 0, "2.13.0+cpu", None, hiding)


def test_a_driver_for_an_older_cuda_than_that_of_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for newest in (13, None):
        monkeypatch.setattr(devices, "newest_cuda", lambda newest=newest: newest)
        refuse_unusable_gpus(FILES, 2, "2.13.0+cu130", "13.0", None)
    monkeypatch.setattr(devices, "newest_cuda", lambda: 12)
    monkeypatch.setattr(devices, "driver_version", lambda: "550.54")
    with pytest.raises(InputError, match=r"it runs CUDA 12 at most, and torch 2\.13\.0\+cu130 is built for CUDA 13\.0"):
        refuse_unusable_gpus(FILES, 2, "2.13.0+cu130", "13.0", None)


MOUNTS = """\
tmpfs /sys/fs/cgroup tmpfs rw,mode=755 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0
"""
OF_VERSION_2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,relatime,nsdelegate 0 0\n"
NO_LIMIT = "9223372036854771712"  # as version 1 writes it
LIMIT_1 = {"memory.limit_in_bytes": "6000", "memory.usage_in_bytes": "5000", "memory.stat": "total_inactive_file 250"}
LIMIT_2 = {"memory.max": "6000", "memory.current": "5000", "memory.stat": "anon 9\ninactive_file 250"}
QUOTA_1 = {"cpu.cfs_quota_us": "150000", "cpu.cfs_period_us": "100000"}
TREES = {  # own groups, mounts and files of a tree that leaves 1,250 bytes, and the time of one core and a half
    "version 1, limited by a group around its own": (
        "4:memory:/batch/job\n3:cpu,cpuacct:/batch/job\n1:name=systemd:/\n0::/",
        MOUNTS,
        {
            "memory/batch/job": {**LIMIT_1, "memory.limit_in_bytes": NO_LIMIT},
            "memory/batch": LIMIT_1,
            "cpu,cpuacct/batch/job": {**QUOTA_1, "cpu.cfs_quota_us": "-1"},
            "cpu,cpuacct/batch": QUOTA_1,
        },
    ),
    "version 1 in a container, which sees its own group alone": (
        "4:memory:/docker/1f\n3:cpu,cpuacct:/docker/1f",
        MOUNTS,
        {"memory": LIMIT_1, "cpu,cpuacct": QUOTA_1},
    ),
    "version 2, limited by a group around its own": (
        "0::/batch/job",
        OF_VERSION_2,
        {
            "batch/job": {**LIMIT_2, "memory.max": "max", "cpu.max": "max 100000"},
            "batch": {**LIMIT_2, "cpu.max": "150000 100000"},
        },
    ),
    "version 2 in a container": ("0::/", OF_VERSION_2, {"": {**LIMIT_2, "cpu.max": "150000 100000"}}),
}


@pytest.mark.parametrize("name", TREES)
def test_limits_of_control_groups_count_wherever_they_are_set(name: str, tmp_path: Path) -> None:
    own, mounts, groups = TREES[name]
    files = {"proc/self/cgroup": own, "proc/self/mounts": mounts} | {
        f"sys/fs/cgroup/{group}/{file}": text for group, texts in groups.items() for file, text in texts.items()
    }
    for file, text in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    assert free_memory(tmp_path) == 1250
    assert visible_cores(tmp_path) == 1


@given(jobs=st.integers(1, 12), cores=st.integers(1, 40))
def test_every_run_of_a_sweep_has_equally_many_cores_and_few_are_left_over(jobs: int, cores: int) -> None:
    shares = divide(jobs, range(cores))
    used = [core for share in shares for core in share.cores]
    assert len(shares) == jobs
    assert len({len(share.cores) for share in shares}) == 1
    assert len(set(range(cores)) - set(used)) < jobs
    uses = [used.count(core) for core in set(used)]
    assert max(uses) - min(uses) <= (jobs > cores)


@given(jobs=st.integers(1, 8), count=st.integers(1, 16))
def test_a_device_belongs_to_one_run_alone(jobs: int, count: int) -> None:
    names = [f"GPU-{number}" for number in range(count)]
    if jobs > count:
        with pytest.raises(InputError, match=f"--jobs {jobs}: .* {count} are visible; give --jobs {count}"):
            divide(jobs, [0, 1], names)
        return
    used = [device for share in divide(jobs, [0, 1], names) for device in share.devices]
    assert used == names


def test_a_rank_stays_on_the_cores_of_its_gpus_node_and_gets_none_that_it_was_denied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = fake_nvml(monkeypatch, 2)
    monkeypatch.setenv(VISIBLE_DEVICES, fake.uuids[1])
    own = os.sched_getaffinity(0)
    first = min(own)
    denied = max(own) + 1

    def cores_near(near: set[int] | None) -> set[int]:
        """Return what is left to a thread, which has cores of its own."""
        fake.near[1] = near
        left: list[set[int]] = []

        def stay() -> None:
            stay_near_gpu()
            left.append(os.sched_getaffinity(0))

        thread = threading.Thread(target=stay)
        thread.start()
        thread.join()
        return left[0]

    assert cores_near({first, denied}) == {first}
    assert cores_near({denied}) == own
    assert cores_near(None) == own
