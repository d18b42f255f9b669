"""GPUs that torch cannot use are refused, and those of a machine are divided between the runs of a sweep."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.errors import InputError
from arl.launch import devices
from arl.launch.devices import divide, refuse_unusable_gpus


@pytest.fixture
def two_gpus(tmp_path: Path) -> Path:
    """Make the device files of a machine with two GPUs."""
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    return tmp_path


def test_a_torch_for_the_cpu_on_a_machine_with_gpus_is_refused_with_both_remedies(two_gpus: Path) -> None:
    with pytest.raises(InputError, match=r"GPUs \(nvidia0, nvidia1\), and torch 2\.13\.0\+cpu is built") as caught:
        refuse_unusable_gpus("2.13.0+cpu", None, 0, None, two_gpus)
    assert "whl/cu130" in str(caught.value)
    assert "CUDA_VISIBLE_DEVICES= to compute on the CPU" in str(caught.value)


@pytest.mark.parametrize("hiding", ["", "-1", "NoDevFiles"])
def test_with_hidden_gpus_or_without_any_a_run_computes_on_the_cpu(
    two_gpus: Path, tmp_path_factory: pytest.TempPathFactory, hiding: str
) -> None:
    refuse_unusable_gpus("2.13.0+cpu", None, 0, hiding, two_gpus)
    without = tmp_path_factory.mktemp("dev")
    (without / "nvidiactl").touch()  # some containers have it without any GPU
    refuse_unusable_gpus("2.13.0+cpu", None, 0, None, without)


@pytest.mark.parametrize(("newest", "is_refused"), [(12, True), (13, False), (None, False)])
def test_a_driver_for_an_older_cuda_than_that_of_torch_is_refused(
    two_gpus: Path, monkeypatch: pytest.MonkeyPatch, newest: int | None, is_refused: bool
) -> None:
    monkeypatch.setattr(devices, "newest_cuda", lambda: newest)
    if not is_refused:
        refuse_unusable_gpus("2.13.0+cu130", "13.0", 2, None, two_gpus)
        return
    with pytest.raises(InputError, match=r"it runs CUDA 12 at most, and torch 2\.13\.0\+cu130 is built for CUDA 13\.0"):
        refuse_unusable_gpus("2.13.0+cu130", "13.0", 2, None, two_gpus)


@pytest.mark.parametrize(("wanted", "said"), [("7", "is '7'"), (None, "is not set")])
def test_a_choice_of_devices_that_names_none_is_refused(two_gpus: Path, wanted: str | None, said: str) -> None:
    with pytest.raises(InputError, match=rf"sees none of them \(CUDA_VISIBLE_DEVICES {said}\)"):
        refuse_unusable_gpus("2.13.0+cu130", "13.0", 0, wanted, two_gpus)


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
