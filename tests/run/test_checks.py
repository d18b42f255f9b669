"""What preflight finds out about GPUs before anything starts: who uses them, how they connect, what is missing."""

import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.config.recipe import Recipe
from arl.errors import InputError
from arl.launch import local
from arl.launch.gpu_devices import find_gpus, named_gpus, smallest_device
from arl.launch.memory_share import RESERVE, engine_share
from arl.launch.torch_build import TorchBuild
from arl.run import checks
from arl.run.preflight import Plan, preflight
from tests.fake_nvml import FakeNvml, fake_nvml
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
def eight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Make a machine with eight GPUs, of which nobody uses any."""
    return fake_nvml(monkeypatch, 8)


# ---- who uses a GPU


def test_a_gpu_that_another_process_computes_on_is_refused_with_its_pid_name_and_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eight: FakeNvml
) -> None:
    eight.use(1, 4711, "/usr/bin/python3", 30_000_000_000)
    with pytest.raises(InputError, match=r"GPU 1 NVIDIA H200, 150\.8 GB: is in use by pid 4711 \(/usr/bin/python3\) w"):
        plan(tmp_path, monkeypatch, ("0", "1"))


def test_a_gpu_that_the_run_does_not_use_may_be_anybodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eight: FakeNvml
) -> None:
    eight.use(1, 4711, "python3", 30_000_000_000)
    assert plan(tmp_path, monkeypatch, ("2", "3")).notes == ()


def test_a_small_use_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eight: FakeNvml) -> None:
    eight.use(0, 99, "Xorg", 200_000_000)
    assert plan(tmp_path, monkeypatch, ("0", "1")).notes == (
        "GPU 0 NVIDIA H200, 150.8 GB: also used by pid 99 (Xorg) with 0.2 GB",
    )


def test_memory_that_a_process_of_another_container_holds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eight: FakeNvml
) -> None:
    eight.used[0] = 73_400_000_000
    with pytest.raises(InputError, match=r"GPU 0 .*: 73\.4 GB are in use by processes that the driver does not list"):
        plan(tmp_path, monkeypatch, ("0", "1"))


def test_without_a_driver_the_plan_says_that_nobody_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_gpus", lambda: None)
    assert plan(tmp_path, monkeypatch, ("0", "1")).notes == (checks.NOT_LOOKED,)


# ---- names and connections


def test_gpus_are_found_by_number_and_by_shortened_uuid(eight: FakeNvml) -> None:
    eight.uuids[3] = "GPU-3ac0ffee"
    gpus = find_gpus()
    assert gpus is not None
    assert [gpu.number for gpu in named_gpus(gpus, ("GPU-3ac", "5", "9"))] == [3, 5]


def test_gpus_without_access_to_each_other_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eight: FakeNvml
) -> None:
    eight.without_access = {(0, 2), (5, 6)}
    sections = {"engine": {"replicas": 2}}
    (note,) = plan(tmp_path, monkeypatch, ("0", "1", "2"), **sections).notes
    assert note.startswith("GPUs 0 and 2: no access to each other's memory, so NCCL copies by way of the host")


# ---- what is missing


def test_too_little_shared_memory_for_nccl_is_refused_with_the_flags_of_docker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eight: FakeNvml
) -> None:
    monkeypatch.delenv("NCCL_SHM_DISABLE", raising=False)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(67_108_864, 0, 67_108_864))
    with pytest.raises(InputError, match=r"/dev/shm for NCCL, 0\.07 GB free; .* --shm-size=16g or --ipc=host"):
        plan(tmp_path, monkeypatch, ("0", "1"))
    monkeypatch.setenv("NCCL_SHM_DISABLE", "1")
    assert plan(tmp_path, monkeypatch, ("0", "1")).transport == "broadcast"
    monkeypatch.delenv("NCCL_SHM_DISABLE")
    assert plan(tmp_path, monkeypatch, ("0", "1"), sync={"transport": "file"}).transport == "file"  # no NCCL group


def test_a_machine_with_gpus_and_without_a_compiler_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eight: FakeNvml
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"missing: C compiler, with which Triton compiles on GPUs; install"):
        plan(tmp_path, monkeypatch, ("0", "1"))


def test_engines_with_another_nccl_than_the_ranks_are_refused_where_weights_are_broadcast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eight: FakeNvml
) -> None:
    python = make_fake_sglang(tmp_path)
    add_fake_torch(tmp_path, TorchBuild("2.11.0+cu130", "13.0", (2, 28, 9)))
    ours = TorchBuild("2.13.0+cu130", "13.0", (2, 29, 7))
    monkeypatch.setattr(checks, "own_torch", lambda: ours)
    engine = {"kind": "sglang", "python": python}
    with pytest.raises(InputError, match=r"The trainer has .* NCCL 2\.29\.7 .* the engines have .* NCCL 2\.28\.9"):
        plan(tmp_path, monkeypatch, ("0", "1"), engine=engine)
    assert plan(tmp_path, monkeypatch, ("0", "1"), engine=engine, sync={"transport": "file"}).transport == "file"


def test_an_sglang_without_its_kernels_is_refused_on_gpus_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eight: FakeNvml
) -> None:
    python = make_fake_sglang(tmp_path, requires="sglang-kernel==0.4.7")
    engine = {"kind": "sglang", "python": python}
    assert plan(tmp_path, monkeypatch, (), engine=engine).gpus == ()
    with pytest.raises(InputError, match=rf"{python} -m pip install 'sglang-kernel==0\.4\.7'"):
        plan(tmp_path, monkeypatch, ("0", "1"), engine=engine)


# ---- memory that two sides share


def test_a_collocated_engine_leaves_room_on_its_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eight: FakeNvml
) -> None:
    together = plan(tmp_path, monkeypatch, ("0",), mode="collocated").placement
    assert together.engines[0].memory_share == 1 - RESERVE
    apart = plan(tmp_path, monkeypatch, ("0", "1")).placement
    assert apart.engines[0].memory_share is None


def test_a_gpu_that_does_not_say_how_much_memory_it_has_is_of_unknown_memory(
    eight: FakeNvml,
) -> None:
    eight.total[0] = None
    assert smallest_device(("0",)) is None
    assert smallest_device(("0", "1")) is not None


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
