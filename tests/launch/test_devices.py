"""GPUs that torch cannot use are refused, and those of a machine are divided between the runs of a sweep."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.errors import InputError
from arl.launch import devices
from arl.launch.devices import divide, refuse_unusable_gpus

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
