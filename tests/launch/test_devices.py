"""GPUs that torch cannot use are refused before a run computes on the CPU by mistake."""

from pathlib import Path

import pytest
import torch

from arl.errors import InputError
from arl.launch import devices
from arl.launch.devices import refuse_unusable_gpus, visible_devices


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
def test_with_hidden_gpus_a_run_computes_on_the_cpu(two_gpus: Path, hiding: str) -> None:
    refuse_unusable_gpus("2.13.0+cpu", None, 0, hiding, two_gpus)


def test_a_machine_without_gpus_needs_no_cuda(tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()  # some containers have it without any GPU
    refuse_unusable_gpus("2.13.0+cpu", None, 0, None, tmp_path)


@pytest.mark.parametrize(("newest", "is_refused"), [(12, True), (13, False), (None, False)])
def test_a_driver_for_an_older_cuda_than_that_of_torch_is_refused(
    two_gpus: Path, monkeypatch: pytest.MonkeyPatch, newest: int | None, is_refused: bool
) -> None:
    monkeypatch.setattr(devices, "_cuda_of_driver", lambda: newest)
    if not is_refused:
        refuse_unusable_gpus("2.13.0+cu130", "13.0", 2, None, two_gpus)
        return
    with pytest.raises(InputError, match=r"it runs CUDA 12 at most, and torch 2\.13\.0\+cu130 is built for CUDA 13\.0"):
        refuse_unusable_gpus("2.13.0+cu130", "13.0", 2, None, two_gpus)


@pytest.mark.parametrize(("wanted", "said"), [("7", "is '7'"), (None, "is not set")])
def test_a_choice_of_devices_that_names_none_is_refused(two_gpus: Path, wanted: str | None, said: str) -> None:
    with pytest.raises(InputError, match=rf"sees none of them \(CUDA_VISIBLE_DEVICES {said}\)"):
        refuse_unusable_gpus("2.13.0+cu130", "13.0", 0, wanted, two_gpus)


def test_what_follows_a_name_that_is_no_device_is_ignored_as_torch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(devices, "find_gpus", list)
    monkeypatch.setattr(devices, "refuse_unusable_gpus", lambda *_: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    assert visible_devices() == ("GPU-a",)
