"""GPUs that torch cannot use are refused before a run computes on the CPU by mistake."""

import subprocess
from pathlib import Path

import pytest
import torch

from arl.errors import InputError
from arl.launch.devices import visible_devices
from arl.launch.gpu_driver import cuda_of_library, driver_version, refuse_unusable_gpus

CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Thu Oct 19 00:35:00 UTC 2023\nGCC version: 12.2.0\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (builder@host)\n"


class Machine:
    """Hold the files by which a machine with GPUs is known."""

    def __init__(self, directory: Path) -> None:
        self.devices = directory / "dev"
        self.devices.mkdir()
        self.driver = directory / "version"
        self.library = str(directory / "libcuda.so.1")

    def has_gpus(self, driver: str) -> None:
        for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
            (self.devices / name).touch()
        self.driver.write_text(OPEN.format(driver))

    def has_library_for(self, cuda: int) -> None:
        """Compile a driver library that supports CUDA `cuda`, as NVIDIA's compatibility package brings it."""
        code = f"int cuDriverGetVersion(int *version) {{ *version = {cuda}; return 0; }}"
        argv = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", self.library]
        subprocess.run(argv, input=code, text=True, check=True, timeout=60)

    def check(self, cuda: str | None, num_visible: int = 2, wanted: str | None = None) -> None:
        refuse_unusable_gpus(
            num_visible=num_visible,
            torch=f"2.13.0+{'cpu' if cuda is None else 'cu'}",
            torch_cuda=cuda,
            wanted=wanted,
            devices=self.devices,
            driver=self.driver,
            library=self.library,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_torch_for_the_cpu_on_a_machine_with_gpus_is_refused_with_both_remedies(machine: Machine) -> None:
    machine.has_gpus("580.65.06")
    with pytest.raises(
        InputError, match=r"GPUs \(nvidia0, nvidia1\), and torch 2\.13\.0\+cpu is built for the C"
    ) as caught:
        machine.check(None, num_visible=0)
    assert "whl/cu130" in str(caught.value)
    assert "CUDA_VISIBLE_DEVICES= to compute on the CPU" in str(caught.value)


@pytest.mark.parametrize("hidden", ["", "-1", "NoDevFiles"])
def test_whoever_hides_the_gpus_computes_on_the_cpu(machine: Machine, hidden: str) -> None:
    machine.has_gpus("470.10")
    machine.check(None, num_visible=0, wanted=hidden)


def test_a_machine_without_gpus_needs_no_cuda(machine: Machine) -> None:
    machine.check(None, num_visible=0)
    (machine.devices / "nvidiactl").touch()  # some containers have it without any GPU
    machine.check(None, num_visible=0)


@pytest.mark.parametrize(
    ("driver", "cuda", "needed"),
    [
        ("535.129.03", "13.0", "580"),
        ("579.99", "13.0", "580"),
        ("580.65.06", "13.0", None),
        ("595.10", "12.6", None),
        ("525.60.13", "12.8", None),
        ("470.82.01", "12.6", "525"),
        ("700.1", "14.0", None),  # of a CUDA that we know nothing about
    ],
)
def test_a_driver_older_than_the_cuda_of_torch_needs_is_refused(
    machine: Machine, driver: str, cuda: str, needed: str | None
) -> None:
    machine.has_gpus(driver)
    if needed is None:
        machine.check(cuda)
        return
    with pytest.raises(InputError, match=rf"driver {driver}: .* CUDA {cuda}, which needs driver {needed} or newer"):
        machine.check(cuda)


def test_a_compatibility_package_makes_an_old_driver_new_enough(machine: Machine) -> None:
    machine.has_gpus("535.129.03")
    machine.has_library_for(13000)
    machine.check("13.0")


def test_a_library_that_supports_only_an_older_cuda_does_not(machine: Machine) -> None:
    machine.has_gpus("535.129.03")
    machine.has_library_for(12020)
    assert cuda_of_library(machine.library) == 12
    with pytest.raises(InputError, match="needs driver 580"):
        machine.check("13.0")


def test_a_choice_of_devices_that_names_none_is_refused(machine: Machine) -> None:
    machine.has_gpus("580.65.06")
    with pytest.raises(InputError, match=r"sees none of them \(CUDA_VISIBLE_DEVICES is '7'\)"):
        machine.check("13.0", num_visible=0, wanted="7")
    with pytest.raises(InputError, match=r"sees none of them \(CUDA_VISIBLE_DEVICES is not set\)"):
        machine.check("13.0", num_visible=0)


@pytest.mark.parametrize("text", [CLOSED, OPEN])
def test_the_version_of_either_kind_of_kernel_module_is_read(tmp_path: Path, text: str) -> None:
    file = tmp_path / "version"
    file.write_text(text.format("535.129.03"))
    assert driver_version(file) == "535.129.03"
    assert driver_version(tmp_path / "nothing") is None


def test_this_machine_can_be_asked_for_its_devices() -> None:
    assert isinstance(visible_devices(), tuple)


def test_every_mig_device_is_one_for_some_process_although_torch_counts_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-a, MIG-b")
    assert visible_devices() == ("MIG-a", "MIG-b")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    assert visible_devices() == ("GPU-a",)  # torch ignores what follows a name that is no device
