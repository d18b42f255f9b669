"""What SGLang compiles its kernels with and loads on GPUs: found, made of pip's packages, or named with the remedy.

An environment's torch is built for CUDA 98 here, so that no toolkit of this machine serves, and its nvcc is a script.
SGLang's real modules are compiled by the real nvcc where .ci/sglang has installed it; no GPU is needed for that.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from arl.config.engine_section import EngineConfig
from arl.config.recipe_file import load_recipe
from arl.engine.backend import find_backend
from arl.engine.sglang.sglang_backend import TOOLKIT
from arl.errors import InputError
from arl.launch import local
from arl.launch.network import LOOPBACK
from arl.launch.torch_build import TorchBuild
from arl.run.checks import Finding, gpu_checks
from arl.run.preflight import preflight
from tests.fake_nvml import fake_nvml
from tests.fake_sglang import add_fake_torch, make_fake_sglang
from tests.forks import ROOT

SCRIPT = f"import os, runpy, sys\ntoolkit = runpy.run_path({str(TOOLKIT)!r})\n"
REFUSES = "#error -- unsupported GNU version! gcc versions later than 15 are not supported!"
LOADER = """
import os, subprocess

def activation_module(dtype):
    done = subprocess.run([os.environ["CUDA_HOME"] + "/bin/nvcc", "-c", "m.cu"], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError("Failed to build JIT module activation\\nstderr:\\n" + done.stderr)
"""


class Box:
    """Make a machine with SGLang's environment, whose PATH and CUDA toolkits are those that a test adds."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.site = directory / "site"
        self.bin = directory / "bin"
        self.bin.mkdir()
        self.python = make_fake_sglang(directory)
        self.packages = self.site / "nvidia" / "cu98"
        add_fake_torch(directory, TorchBuild("2.13.0", "98.0"))
        for name in ("CUDA_HOME", "CUDA_PATH", "CXX", "NVCC_PREPEND_FLAGS", "LD_LIBRARY_PATH"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("ARL_CACHE", str(directory / "cache"))
        monkeypatch.setenv("PATH", str(self.bin))

    def add_compiler(self) -> None:
        """Install a C++ compiler."""
        for name in ("c++", "as", "ld"):
            (self.bin / name).symlink_to(shutil.which(name, path="/usr/bin:/bin") or pytest.skip(f"no {name} here"))

    def add_nvcc(self, home: Path, release: str, refusal: str = "") -> None:
        """Install an nvcc that only says its release, or what it dislikes."""
        (home / "bin").mkdir(parents=True, exist_ok=True)
        nvcc = home / "bin" / "nvcc"
        compiles = f"echo '{refusal}' >&2; exit 1" if refusal else "exit 0"
        nvcc.write_text(f'#!/bin/sh\n[ "$1" = --version ] || {{ {compiles}; }}\necho "tools, release {release}, V1"\n')
        nvcc.chmod(0o755)

    def add_packages(self, refusal: str = "") -> Path:
        """Install pip's nvcc and libcudart, and an SGLang that compiles with the former; return libcudart."""
        self.add_nvcc(self.packages, "98.0", refusal)
        for package in ("jit/utils", "ops/activation"):
            (self.site / "sglang" / "kernels" / package).mkdir(parents=True)
        kernels = self.site / "sglang" / "kernels"
        arch = "from contextlib import nullcontext\noverride_jit_cuda_arch = lambda *_: nullcontext()\n"
        (kernels / "jit" / "utils" / "__init__.py").write_text(arch)
        (kernels / "ops" / "activation" / "activation.py").write_text(LOADER)
        (self.site / "torch" / "__init__.py").write_text("from torch import cuda\nbfloat16 = None\n")
        (self.site / "torch" / "cuda" / "__init__.py").write_text("def is_available():\n    return False\n")
        runtime = self.packages / "lib" / "libcudart.so.98"
        runtime.parent.mkdir()
        _link_library(runtime, "int runtime() { return 0; }", "-Wl,-soname,libcudart.so.98")
        return runtime

    def look(self, collocated: bool = False, **environment: str) -> dict[str, Finding]:
        """Return what `arl doctor` finds of SGLang, by the words in front of a colon."""
        config = EngineConfig(kind="sglang", python=self.python, environment=environment)
        backend = find_backend("sglang").probe(config)
        found = gpu_checks([backend], uses_nccl=False, broadcasts=False, collocated=collocated)
        return {finding.what.partition(":")[0]: finding for finding in found}

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run SGLang's interpreter."""
        command = [self.python, *arguments]
        env = {**os.environ, **environment}
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=env)


def _link_library(output: Path, source: str, *flags: str) -> None:
    env = {**os.environ, "PATH": "/usr/bin:/bin"}
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-Wl,--no-as-needed", *flags, "-o", str(output)]
    subprocess.run(command, input=source, text=True, check=True, env=env)


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    return Box(tmp_path, monkeypatch)


COMPILER = "C++ compiler, with which SGLang compiles kernels"
NEEDS = "toolkit of CUDA 98, with which SGLang compiles kernels"
COMPILED = "SGLang's kernels are compiled by"


def test_a_bare_machine_is_told_each_missing_thing_with_the_command_that_brings_it(box: Box) -> None:
    found = box.look()
    assert str(found[COMPILER]).splitlines() == [
        f"MISSING  {COMPILER}: no program c++",
        "apt install g++, or name one in CXX",
    ]
    remedy = "-m pip install 'nvidia-cuda-nvcc==98.*' 'nvidia-cuda-cccl==98.*' 'nvidia-cuda-runtime==98.*', or name"
    assert not found[NEEDS].good
    assert remedy in found[NEEDS].remedy
    assert COMPILED not in found


def test_a_nvcc_on_path_whose_folder_is_no_toolkit_gives_way_to_pips_packages_in_a_toolkits_places(
    box: Box, tmp_path: Path
) -> None:
    box.add_nvcc(tmp_path, "98.0")
    box.add_compiler()
    assert f"{tmp_path} has no lib64/libcudart.so with which c++ links" in box.look()[NEEDS].what
    box.add_packages()
    home = box.look()["toolkit, with which SGLang compiles kernels"].what.rpartition(" ")[2]
    assert Path(home).parent == tmp_path / "cache"
    assert (Path(home) / "bin" / "nvcc").samefile(box.packages / "bin" / "nvcc")
    assert box.look()[COMPILED].good


def test_a_toolkit_of_another_cuda_is_refused_by_the_name_of_the_variable_that_names_it(
    box: Box, tmp_path: Path
) -> None:
    box.add_compiler()
    box.add_packages()
    box.add_nvcc(tmp_path / "old", "12.4")
    finding = box.look(CUDA_HOME=str(tmp_path / "old"))[NEEDS]
    assert f"CUDA_HOME {tmp_path}/old has a bin/nvcc of CUDA 12, and SGLang's torch is of CUDA 98" in finding.what
    assert finding.remedy == "unset CUDA_HOME, or name a toolkit of CUDA 98 in it"


def test_a_compiler_that_nvcc_refuses_is_named_in_nvccs_words_with_one_that_it_takes(box: Box) -> None:
    box.add_compiler()
    box.add_packages(REFUSES)
    finding = box.look()["compilers, with which SGLang compiles kernels"]
    assert str(finding).count("\n") == 1
    assert REFUSES in finding.what
    assert finding.remedy == "apt install g++-15, and set CXX=g++-15"


def test_a_run_on_gpus_is_refused_before_anything_starts(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml(monkeypatch, 2)
    monkeypatch.setattr(local, "visible_devices", lambda: ("0", "1"))
    (box.bin / "gcc").symlink_to("/usr/bin/gcc")
    recipe = load_recipe(ROOT / "recipes/quickstart-sglang.yaml", [f"engine.python={box.python}"])
    with pytest.raises(InputError) as refused:
        preflight(recipe)
    first, second, *_ = str(refused.value).splitlines()
    assert first.startswith(f"missing: {COMPILER}: no program c++; apt install g++")
    assert second.startswith(f"missing: {NEEDS}: ")


def test_the_memory_savers_library_finds_libcudart_in_processes_that_a_server_starts(box: Box) -> None:
    runtime = box.add_packages()
    hook = box.site / "torch_memory_saver_hook_mode_preload_cu98.abi3.so"
    _link_library(hook, "", f"-L{runtime.parent}", f"-l:{runtime.name}")
    start = f"os.execve('/bin/true', ['true'], {{**os.environ, 'LD_PRELOAD': {str(hook)!r}}})"
    assert box.run("-c", f"{SCRIPT}{start}").returncode == 127
    assert box.run("-c", f"{SCRIPT}toolkit['set_library_path']()\n{start}").returncode == 0
    saver = "memory saver's library, which every process of a collocated SGLang preloads"
    assert box.look(collocated=True)[saver].good
    assert saver not in box.look()
    runtime.unlink()
    finding = box.look(collocated=True)[saver]
    assert "libcudart.so.98: cannot open shared object file" in finding.what
    assert "-m pip install 'nvidia-cuda-runtime==98.*'" in finding.remedy


def test_a_server_on_gpus_gets_the_toolkit_and_its_libraries_and_the_users_compiler_or_says_what_is_missing(
    box: Box, tmp_path: Path
) -> None:
    box.add_compiler()
    runtime = box.add_packages()
    (box.site / "sglang" / "launch_server.py").write_text("import json, os\nprint(json.dumps(dict(os.environ)))\n")
    server = (str(TOOLKIT.with_name("server_process.py")), "--host", LOOPBACK, "--port", "0", "--tp-size", "1")
    done = box.run(*server, CXX="c++", LD_LIBRARY_PATH="/theirs", ARL_RUN_KEY="key")
    given = json.loads(done.stdout)
    assert Path(given["CUDA_HOME"]).parent == tmp_path / "cache"
    assert given["LD_LIBRARY_PATH"] == f"{runtime.parent}:/theirs"
    assert given["NVCC_PREPEND_FLAGS"] == "-ccbin=c++"
    done = box.run(*server, CUDA_HOME="/nowhere", ARL_RUN_KEY="key")
    assert done.returncode == 1
    assert (
        done.stderr.strip()
        == f"missing: {NEEDS}: CUDA_HOME /nowhere has no bin/nvcc; unset CUDA_HOME, or name a toolkit of CUDA 98 in it"
    )


THREE = """
import torch
from sglang.kernels.jit.utils import override_jit_cuda_arch
from sglang.kernels.ops.activation.activation import activation_module
from sglang.kernels.ops.attention.rope import _jit_fused_rope_module
from sglang.kernels.ops.kvcache.kvcache import _jit_kvcache_module

with override_jit_cuda_arch(9, 0):
    activation_module(torch.bfloat16)
    _jit_fused_rope_module(True, 128, torch.bfloat16, torch.bfloat16)
    _jit_kvcache_module(256, 256)
"""


@pytest.mark.long
@pytest.mark.sglang
def test_sglangs_modules_compile_and_link_for_an_h100_with_the_packages_of_its_environment(
    sglang_python: str, tmp_path: Path
) -> None:
    """A nvcc on PATH that does nothing hides the toolkits of this machine."""
    folder = Path(sglang_python).parent
    if not list(folder.parent.glob("lib/python*/site-packages/nvidia/cu13/bin/nvcc")):
        pytest.skip(f"{sglang_python} has no nvcc: .ci/sglang installs it")
    if shutil.which("c++", path="/usr/bin:/bin") is None:
        pytest.skip("no c++ here")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").symlink_to("/bin/true")
    env = {
        "PATH": f"{folder}:{tmp_path}/bin:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "SGLANG_JIT_CACHE_DIR": str(tmp_path / "jit"),
    }
    report = [sglang_python, "-c", f"{SCRIPT}toolkit['report'](False)"]
    done = subprocess.run(report, capture_output=True, text=True, timeout=900, check=True, env=env)
    found = [Finding(**each) for each in json.loads(done.stdout.splitlines()[-1])]
    assert all(finding.good for finding in found), found
    assert any(f"{tmp_path}/.cache/arl/cuda-" in finding.what for finding in found)
    code = f"{SCRIPT}toolkit['set_library_path']()\ntoolkit['set_toolkit']()\n"
    code += f"os.execv(sys.executable, [sys.executable, '-c', {THREE!r}])"
    subprocess.run([sglang_python, "-c", code], timeout=900, check=True, env=env)
    modules = sorted(path.name.removeprefix("sgl_kernel_jit_") for path in (tmp_path / "jit" / "sm90a").rglob("*.so"))
    assert [name.partition("_")[0] for name in modules] == ["activation", "fused", "kvcache"]
