"""`arl doctor`: everything there, or what is missing with the commands that bring it."""

import sys
from pathlib import Path

import pytest

from arl.config.recipe_file import load_recipe
from arl.launch.torch_build import TorchBuild
from arl.run import doctor
from arl.run.doctor import examine
from tests.fake_nvml import fake_nvml
from tests.fake_sglang import add_fake_torch, make_fake_sglang
from tests.forks import ROOT, arl

QUICKSTART = str(ROOT / "recipes/quickstart-sglang.yaml")


def test_an_interpreter_without_sglang_is_told_how_to_get_it() -> None:
    done = arl("doctor", QUICKSTART, "--python", sys.executable)
    assert done.returncode == 2
    assert f"MISSING  engine sglang: engine.python {sys.executable}" in done.stdout
    assert f"ENV/bin/pip install --no-deps -r {ROOT}/arl/engine/sglang/requirements-gpu.txt" in done.stdout
    assert ".ci/sglang" in done.stdout


def test_sglangs_version_and_whether_a_recipe_can_start_are_told(tmp_path: Path) -> None:
    python = make_fake_sglang(tmp_path)
    done = arl("doctor", QUICKSTART, "--set", f"engine.python={python}")
    assert done.returncode == 0, done.stdout
    assert "MISSING" not in done.stdout
    assert f"engine sglang: SGLang 0.5.20 in {python}" in done.stdout
    assert "recipe quickstart-sglang: it can start" in done.stdout


def test_on_a_login_node_a_recipe_for_slurm_is_checked_as_far_as_one_can_before_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = (str(ROOT / "recipes/quickstart.yaml"), "--set", "launcher=slurm")
    (tmp_path / "sbatch").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    done = arl("doctor", *slurm)
    assert done.returncode == 0, done.stdout
    assert "ok       recipe quickstart: it can be submitted to Slurm" in done.stdout
    monkeypatch.setenv("PATH", "")
    assert "sbatch is not found" in arl("doctor", *slurm).stdout


def test_gpus_are_reported_with_their_users_compilers_and_what_both_sides_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eight = fake_nvml(monkeypatch, 8)
    eight.use(2, 4711, "python3", 31_500_000_000)
    python = make_fake_sglang(tmp_path, requires="sglang-kernel==0.4.7")
    add_fake_torch(tmp_path, TorchBuild("2.11.0+cu130", "13.0", (2, 28, 9)))
    findings = list(examine(load_recipe(Path(QUICKSTART), [f"engine.python={python}"]), None))
    assert not all(finding.good for finding in findings)  # this torch is built for the CPU: it has no NCCL
    lines = "\n".join(map(str, findings)).splitlines()
    free = "ok       GPU 0 NVIDIA H200, 150.8 GB, 0.0 GB used, driver 580.65.06; no process computes on it"
    assert free in lines
    assert any("GPU 2" in line and "31.5 GB used" in line and "pid 4711 (python3)" in line for line in lines)
    assert "ok       flash attention 2 of torch; version 3, for H100 and H200, is in flash_attn_interface" in lines
    assert "MISSING  SGLang and the trainer in one NCCL group" in lines
    at = lines.index(f"MISSING  what SGLang needs on GPUs, in {python}: sglang-kernel==0.4.7")
    assert any("ENV/bin/pip install --no-deps -r" in line for line in lines[at + 1 : at + 4])


def test_on_gpus_sglang_is_missing_where_nobody_has_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "visible_devices", lambda: ("0",))
    monkeypatch.setenv("ARL_SGLANG_PYTHON", "/nowhere")
    (line,) = (str(finding) for finding in examine(None, None) if "engine sglang" in finding.what)
    assert line.startswith("MISSING  engine sglang: engine.python /nowhere")
    assert "apt install g++ python3." in line
