"""What preflight finds out about GPUs before anything starts: who uses them, how they connect, what is missing."""

import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.config.recipe import Recipe
from arl.errors import InputError, RecipeError
from arl.launch import local
from arl.launch.base import Node
from arl.launch.compilers import c_compiler, lacks_header
from arl.launch.device_memory import smallest_device
from arl.launch.gpu_devices import find_gpus, named_gpus
from arl.launch.memory_share import RESERVE, engine_share
from arl.launch.placement import place
from arl.launch.torch_build import TorchBuild
from arl.run import gpu_checks
from arl.run.preflight import Plan, preflight
from tests.fake_nvidia_smi import FakeNvidiaSmi, on_path
from tests.fake_sglang import add_fake_torch, make_fake_sglang

Usage = namedtuple("Usage", "total used free")


def recipe(tmp_path: Path, **sections: object) -> Recipe:
    base = {
        "model": {"tiny": {}},
        "data": {"task": "running_checksum"},
        "rollout": {"max_new_tokens": 64},
        "output": {"directory": str(tmp_path / "runs")},
    }
    return Recipe.model_validate(base | sections)


def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: tuple[str, ...], **sections: object) -> Plan:
    monkeypatch.setattr(local, "visible_devices", lambda: devices)
    return preflight(recipe(tmp_path, **sections))


@pytest.fixture
def eight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvidiaSmi:
    """Make a machine with eight GPUs, of which nobody uses any."""
    return on_path(monkeypatch, tmp_path, 8)


# ---- who uses a GPU


def test_a_gpu_that_another_process_computes_on_is_refused_with_its_pid_name_and_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eight: FakeNvidiaSmi
) -> None:
    eight.use(1, 4711, "/usr/bin/python3", "30000")
    with pytest.raises(InputError, match=r"GPU 1 NVIDIA H200, 150\.8 GB: is in use by pid 4711 \(/usr/bin/python3\) w"):
        plan(tmp_path, monkeypatch, ("0", "1"))


def test_a_gpu_that_the_run_does_not_use_may_be_anybodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eight: FakeNvidiaSmi
) -> None:
    eight.use(1, 4711, "python3", "30000")
    assert plan(tmp_path, monkeypatch, ("2", "3")).notes == ()


def test_a_small_use_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eight: FakeNvidiaSmi) -> None:
    eight.use(0, 99, "Xorg", "200")
    assert plan(tmp_path, monkeypatch, ("0", "1")).notes == (
        "GPU 0 NVIDIA H200, 150.8 GB: also used by pid 99 (Xorg) with 0.2 GB",
    )


@pytest.mark.parametrize("mebibytes", ["[N/A]", "[Not Supported]"])
def test_a_process_of_unknown_size_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eight: FakeNvidiaSmi, mebibytes: str
) -> None:
    eight.use(0, 7, "python3", mebibytes)
    with pytest.raises(InputError, match=r"is in use by pid 7 \(python3\); end it"):
        plan(tmp_path, monkeypatch, ("0", "1"))


def test_memory_that_a_process_of_another_container_holds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eight: FakeNvidiaSmi
) -> None:
    eight.gpus[0][4] = "70000"
    eight.write()
    with pytest.raises(InputError, match=r"GPU 0 .*: 73\.4 GB are in use by processes that nvidia-smi does not list"):
        plan(tmp_path, monkeypatch, ("0", "1"))


def test_without_nvidia_smi_the_plan_says_that_nobody_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has nvidia-smi")
    assert plan(tmp_path, monkeypatch, ("0", "1")).notes == (gpu_checks.NOT_LOOKED,)


def test_on_a_cpu_nothing_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eight: FakeNvidiaSmi) -> None:
    eight.use(0, 4711, "python3", "30000")
    found = plan(tmp_path, monkeypatch, ())
    assert found.gpus == ()
    assert found.notes == ()


# ---- names and connections


def test_gpus_are_found_by_number_and_by_shortened_uuid(eight: FakeNvidiaSmi) -> None:
    eight.gpus[3][1] = "GPU-3ac0ffee"
    eight.write()
    gpus = find_gpus()
    assert gpus is not None
    assert [gpu.number for gpu in named_gpus(gpus, ("GPU-3ac", "5", "MIG-1"))] == [3, 5]


def test_gpus_without_access_to_each_other_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eight: FakeNvidiaSmi
) -> None:
    eight.without_access = {(0, 2), (5, 6)}
    eight.write()
    sections = {"engine": {"replicas": 2}}
    (note,) = plan(tmp_path, monkeypatch, ("0", "1", "2"), **sections).notes
    assert note.startswith("GPUs 0 and 2: no access to each other's memory, so NCCL copies by way of the host")


def test_a_gpu_that_is_divided_must_be_named_by_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eight: FakeNvidiaSmi
) -> None:
    eight.gpus[0][6] = "Enabled"
    eight.write()
    with pytest.raises(InputError, match="divided into MIG devices: name the MIG devices in CUDA_VISIBLE_DEVICES"):
        plan(tmp_path, monkeypatch, ("0", "1"))


@pytest.mark.parametrize("devices", [("0",), ("0", "1"), tuple("01234567"), ("MIG-a", "MIG-b"), ()])
def test_each_process_of_a_collocated_or_separate_run_gets_a_device_of_its_own(
    tmp_path: Path, devices: tuple[str, ...]
) -> None:
    node = Node("here", 8, devices)
    together = place(recipe(tmp_path, mode="collocated"), [node])
    assert together.devices_of(0) == devices[:1]
    if len(devices) == 1:
        with pytest.raises(RecipeError, match=r"which makes 2; there is 1 visible: lower .* or CUDA_VISIBLE_DEVICES="):
            place(recipe(tmp_path), [node])
        return
    apart = place(recipe(tmp_path), [node])
    assert [apart.engines[0].devices, apart.ranks[0].devices] == [devices[:1], devices[1:2]]


def test_eight_gpus_hold_six_engines_and_two_ranks(tmp_path: Path) -> None:
    given = recipe(tmp_path, engine={"replicas": 6}, train={"ranks": 2})
    placed = place(given, [Node("here", 64, tuple("01234567"))])
    assert [engine.devices for engine in placed.engines] == [(str(i),) for i in range(6)]
    assert [rank.devices for rank in placed.ranks] == [("6",), ("7",)]


@pytest.mark.parametrize(
    ("sections", "rule"),
    [
        ({"train": {"ranks": 2}}, "train.ranks 2: NCCL joins no MIG devices"),
        ({"engine": {"kind": "sglang", "tensor_parallel": 2}}, "engine.tensor_parallel 2: NCCL joins no MIG"),
        ({"sync": {"transport": "broadcast"}}, "sync.transport broadcast: NCCL joins no MIG devices"),
    ],
)
def test_groups_of_mig_devices_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sections: dict[str, object], rule: str
) -> None:
    with pytest.raises(RecipeError, match=rule):
        plan(tmp_path, monkeypatch, ("MIG-a", "MIG-b", "MIG-c", "MIG-d"), **sections)


def test_weights_travel_between_mig_devices_by_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eight: FakeNvidiaSmi
) -> None:
    found = plan(tmp_path, monkeypatch, ("MIG-a", "MIG-b"))
    assert found.transport == "file"
    assert found.notes == ("MIG devices: not looked at whether other processes use them",)


# ---- what is missing


def test_too_little_shared_memory_for_nccl_is_refused_with_the_flags_of_docker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eight: FakeNvidiaSmi
) -> None:
    monkeypatch.delenv("NCCL_SHM_DISABLE", raising=False)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(67_108_864, 0, 67_108_864))
    with pytest.raises(InputError, match=r"/dev/shm: 67 MB are free, .* --shm-size=16g or --ipc=host, or set NCCL_SHM"):
        plan(tmp_path, monkeypatch, ("0", "1"))
    monkeypatch.setenv("NCCL_SHM_DISABLE", "1")
    (note,) = plan(tmp_path, monkeypatch, ("0", "1")).notes
    assert note.startswith("NCCL_SHM_DISABLE=1: NCCL moves data")
    monkeypatch.delenv("NCCL_SHM_DISABLE")
    assert plan(tmp_path, monkeypatch, ("0", "1"), sync={"transport": "file"}).transport == "file"  # no NCCL group


def test_a_machine_with_gpus_and_without_a_compiler_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eight: FakeNvidiaSmi
) -> None:
    monkeypatch.delenv("CC", raising=False)
    assert c_compiler() is not None
    monkeypatch.setenv("PATH", str(eight.directory))
    with pytest.raises(InputError, match=r"no C compiler: Triton compiles with it on GPUs; install one \(apt install"):
        plan(tmp_path, monkeypatch, ("0", "1"))


def test_an_interpreter_without_its_header_is_found(tmp_path: Path) -> None:
    include = tmp_path / "include" / "python3.11"
    include.mkdir(parents=True)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho {include}\n")
    python.chmod(0o755)
    assert lacks_header(str(python)) == str(include)
    (include / "Python.h").touch()
    assert lacks_header(str(python)) is None


def test_engines_with_another_nccl_than_the_ranks_are_refused_where_weights_are_broadcast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eight: FakeNvidiaSmi
) -> None:
    python = make_fake_sglang(tmp_path)
    add_fake_torch(tmp_path, TorchBuild("2.11.0+cu130", "13.0", (2, 28, 9)))
    ours = TorchBuild("2.13.0+cu130", "13.0", (2, 29, 7))
    monkeypatch.setattr(gpu_checks, "own_torch", lambda: ours)
    engine = {"kind": "sglang", "python": python}
    with pytest.raises(InputError, match=r"The trainer has .* NCCL 2\.29\.7 .* the engines have .* NCCL 2\.28\.9"):
        plan(tmp_path, monkeypatch, ("0", "1"), engine=engine)
    assert plan(tmp_path, monkeypatch, ("0", "1"), engine=engine, sync={"transport": "file"}).transport == "file"


def test_an_sglang_without_its_kernels_is_refused_on_gpus_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eight: FakeNvidiaSmi
) -> None:
    python = make_fake_sglang(tmp_path, requires="sglang-kernel==0.4.7")
    engine = {"kind": "sglang", "python": python}
    assert plan(tmp_path, monkeypatch, (), engine=engine).gpus == ()
    with pytest.raises(InputError, match=rf"on GPUs it needs .*; {python} -m pip install 'sglang-kernel==0\.4\.7'"):
        plan(tmp_path, monkeypatch, ("0", "1"), engine=engine)


# ---- memory that two sides share


def test_a_collocated_engine_leaves_room_on_its_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eight: FakeNvidiaSmi
) -> None:
    together = plan(tmp_path, monkeypatch, ("0",), mode="collocated").placement
    assert together.engines[0].memory_share == 1 - RESERVE
    apart = plan(tmp_path, monkeypatch, ("0", "1")).placement
    assert apart.engines[0].memory_share is None


def test_where_the_memory_of_a_gpu_is_not_known_the_plan_asks_for_the_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eight: FakeNvidiaSmi
) -> None:
    engine = {"kind": "sglang", "python": make_fake_sglang(tmp_path)}
    found = plan(tmp_path, monkeypatch, ("MIG-a",), mode="collocated", engine=engine)
    assert found.placement.engines[0].memory_share is None
    assert gpu_checks.UNKNOWN_MEMORY in found.notes


def test_a_gpu_that_does_not_say_how_much_memory_it_has_is_of_unknown_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eight: FakeNvidiaSmi
) -> None:
    eight.gpus[0][3] = "[N/A]"
    eight.write()
    assert smallest_device(("0",)) is None
    assert smallest_device(("0", "1")) is not None
    engine = {"kind": "sglang", "python": make_fake_sglang(tmp_path)}
    found = plan(tmp_path, monkeypatch, ("0",), mode="collocated", engine=engine)
    assert found.placement.engines[0].memory_share is None
    assert gpu_checks.UNKNOWN_MEMORY in found.notes


@given(
    device=st.integers(20 * 10**9, 200 * 10**9),
    rank=st.floats(0, 0.8),
    held_before=st.floats(0, 1),
)
def test_the_rank_fits_whichever_side_allocates_first(device: int, rank: float, held_before: float) -> None:
    """SGLang leaves 1 - share of what it finds free, so less than the whole device if the rank holds some by then."""
    rank_bytes = int(rank * device)
    held = held_before * rank_bytes
    left = (device - held) * (1 - engine_share(device, rank_bytes))
    still_needed = rank_bytes - held
    rounding = 0.0005 * device
    assert left >= still_needed - rounding
