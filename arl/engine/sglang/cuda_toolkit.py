"""Find what SGLang compiles its kernels with, and what its processes load. Standard library only, in its interpreter.

SGLang's rule ─► a toolkit that serves ─► CUDA_HOME        server_process.py calls `set_toolkit`
       └ none ─► links to pip's packages ─┘                `arl doctor` and preflight call `report`

SGLang 0.5.20 compiles kernels at its first start (sglang/kernels/jit/utils/compile/toolchain.py): with the nvcc of
CUDA_HOME, else of CUDA_PATH, else of the folder above the nvcc on PATH, else of /usr/local/cuda. CXX, else c++, links
with -L$CUDA_HOME/lib64 -lcudart. pip brings nvcc and libcudart too, but in folders where SGLang does not look.
"""

import contextlib
import hashlib
import json
import os
import re
import runpy
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from subprocess import PIPE, STDOUT, CompletedProcess, run
from typing import Any

USE = "with which SGLang compiles kernels"
HEADERS = "Python's headers, with which Triton compiles in SGLang"
SAVER = "memory saver's library, which every process of a collocated SGLang preloads"
CUDA = "13"  # the major that SGLang 0.5.20 requires
COMPILER = os.environ.get("CXX", "c++")
CACHE = Path(os.environ.get("ARL_CACHE", Path.home() / ".cache" / "arl"))
# One of the modules that every server needs, by SGLang's own loader, which keeps it in its own cache. Where torch sees
# no GPU the target is an H100.
MODULE = """
import torch
from sglang.kernels.jit.utils import override_jit_cuda_arch
from sglang.kernels.ops.activation.activation import activation_module
with override_jit_cuda_arch(*(torch.cuda.get_device_capability() if torch.cuda.is_available() else (9, 0))):
    activation_module(torch.bfloat16)
"""


class LackingError(SystemExit):
    """Say what this machine lacks, and what to do. A server's process that does not catch it ends with this line."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"missing: {what}; {remedy}")
        self.finding = {"good": False, "what": what, "remedy": remedy}


def set_library_path() -> None:
    """Put the folder of libcudart in front of LD_LIBRARY_PATH, for the processes that this one starts.

    Their loader needs it before Python runs, for what is preloaded, and for modules that are linked with it.
    """
    runtime = installed(f"nvidia/*/lib/libcudart.so.{torch_cuda()}")
    if runtime is not None:  # else none of pip's: the loader has one in its own folders
        folders = filter(None, (str(runtime.parent), os.environ.get("LD_LIBRARY_PATH")))
        os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(folders)


def set_toolkit() -> str:
    """Set the variables with which SGLang compiles kernels, and return the toolkit's folder.

    Raises:
        LackingError: there is no C++ compiler, or no toolkit that serves.
    """
    find_compiler()
    os.environ["CUDA_HOME"] = find_toolkit()
    if "CXX" in os.environ:  # which SGLang gives to the linker alone
        os.environ.setdefault("NVCC_PREPEND_FLAGS", f"-ccbin={COMPILER}")
    return os.environ["CUDA_HOME"]


def installed(pattern: str) -> Path | None:
    """Return the first file or folder among this interpreter's packages that matches."""
    return next((path for folder in sys.path for path in Path(folder).glob(pattern)), None)


def torch_cuda() -> str:
    """Return the CUDA major that torch is built for, without importing it, which takes seconds."""
    file = installed("torch/version.py")
    build = runpy.run_path(str(file))["cuda"] if file else None
    return str(build or CUDA).partition(".")[0]


def find_compiler() -> str:
    """Return the C++ compiler that SGLang takes, if it is there."""
    if shutil.which(COMPILER) is None:
        remedy = "unset CXX, or name a program in it" if "CXX" in os.environ else "apt install g++, or name one in CXX"
        raise LackingError(f"C++ compiler, {USE}: no program {COMPILER}", remedy)
    return COMPILER


def find_toolkit() -> str:
    """Return the toolkit of SGLang's rule if it serves, else links to pip's packages."""
    cuda = torch_cuda()
    named = next((name for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)), None)
    nvcc = shutil.which("nvcc")
    homes = [Path(os.environ[named] if named else Path(nvcc).parents[1] if nvcc else "/usr/local/cuda")]
    packaged = installed(f"nvidia/cu{cuda}/bin/nvcc")
    if packaged and not named:
        homes.append(_link(packaged.parents[1]))
    faults = {home: _fault(home) for home in homes}
    good = next((home for home, fault in faults.items() if not fault), None)
    if good:
        return str(good)
    remedy = f"unset {named}, or name a toolkit of CUDA {cuda} in it"
    if not named:
        parts = " ".join(f"'nvidia-cuda-{part}=={cuda}.*'" for part in ("nvcc", "cccl", "runtime"))
        remedy = f"{sys.executable} -m pip install {parts}, or name a toolkit of CUDA {cuda} in CUDA_HOME"
    found = "; ".join(f"{home} {fault}" for home, fault in faults.items())
    raise LackingError(f"toolkit of CUDA {cuda}, {USE}: {f'{named} ' if named else ''}{found}", remedy)


def _fault(home: Path) -> str:
    """Return why SGLang cannot compile with the toolkit in `home`, as in "has no bin/nvcc"; empty: it can."""
    nvcc = home / "bin" / "nvcc"
    if not os.access(nvcc, os.X_OK):
        return "has no bin/nvcc"
    release = re.search(r"release (\d+)", _run(nvcc, "--version").stdout)
    cuda = release[1] if release else "unknown"
    if cuda != torch_cuda():  # its modules would need a libcudart that their process has not loaded
        return f"has a bin/nvcc of CUDA {cuda}, and SGLang's torch is of CUDA {torch_cuda()}"
    if shutil.which(COMPILER) is None:  # which is missing by itself, and this toolkit may be good
        return ""
    with tempfile.TemporaryDirectory() as folder:
        done = _run(COMPILER, "-shared", f"-L{home}/lib64", "-lcudart", "-o", f"{folder}/empty.so")
    return f"has no lib64/libcudart.so with which {COMPILER} links ({_reason(done)})" if done.returncode else ""


def _link(packages: Path) -> Path:
    """Return a folder that has what is in `packages` where a toolkit has it.

    It stays, because FlashInfer, which SGLang uses as well, compiles again when CUDA_HOME is another one.
    """
    home = CACHE / f"cuda-{_digest(packages)}"
    (home / "lib64").mkdir(parents=True, exist_ok=True)
    links = {name: name for name in ("bin", "include", "nvvm")}
    links["lib64/libcudart.so"] = f"lib/libcudart.so.{torch_cuda()}"
    for name, target in links.items():
        with contextlib.suppress(FileExistsError):  # by an earlier server, or another one
            (home / name).symlink_to(packages / target)
    return home


def _run(*command: object) -> CompletedProcess[str]:
    return run([str(part) for part in command], stdout=PIPE, stderr=STDOUT, text=True, check=False)


def _digest(*facts: object) -> str:
    return hashlib.sha256(repr([str(fact) for fact in facts]).encode()).hexdigest()[:16]


def _reason(done: CompletedProcess[str]) -> str:
    """Return the first line that says "error" or "cannot find", else the last one."""
    lines = done.stdout.strip().splitlines() or [f"exit code {done.returncode}"]
    return next((line for line in lines if re.search(r"\berror\b|cannot find", line)), lines[-1]).strip()


def find_headers() -> str:
    """Return Python's headers."""
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        raise LackingError(f"{HEADERS}: no {header}", "apt install python{}.{}-dev".format(*sys.version_info))
    return str(header)


def preload() -> str:
    """Return the library of the memory saver, after it has been loaded into a program."""
    hook = installed(f"torch_memory_saver_hook_mode_preload_cu{torch_cuda()}.*.so")
    if hook is None:
        raise LackingError(f"{SAVER}: it is not installed", f"{sys.executable} -m pip install torch_memory_saver")
    done = _run("/usr/bin/env", f"LD_PRELOAD={hook}", "/bin/true")
    if done.returncode:
        libcudart = f"{sys.executable} -m pip install 'nvidia-cuda-runtime=={torch_cuda()}.*'"
        raise LackingError(f"{SAVER}: {_reason(done)}", f"libcudart: {libcudart}; libcuda: install NVIDIA's driver")
    return str(hook)


def compile_once() -> str:
    """Compile one of SGLang's modules and link it, unless the same tools have done so before; return their names."""
    nvcc = Path(set_toolkit()) / "bin" / "nvcc"
    versions = (_run(tool, "--version").stdout for tool in (nvcc, COMPILER))
    flags = os.environ.get("NVCC_PREPEND_FLAGS")
    done_before = CACHE / f"compiled-{_digest(nvcc, COMPILER, *versions, flags, sys.prefix, version('sglang'))}"
    what = f"{nvcc} and {COMPILER}"
    if done_before.exists():
        return what
    done = _run(sys.executable, "-c", MODULE)
    if done.returncode:
        newest = re.search(r"later than (\d+)", done.stdout)  # nvcc refuses a C++ compiler that is newer than itself
        older = f"apt install g++-{newest[1]}, and set CXX=g++-{newest[1]}" if newest else ""
        raise LackingError(f"compilers, {USE}: {what}: {_reason(done)}", older or "name others in CUDA_HOME and CXX")
    CACHE.mkdir(parents=True, exist_ok=True)
    done_before.touch()
    return what


def report(collocated: bool) -> None:
    """Print what is there and what is missing, as a list of arl.run.checks.Finding, in one line of JSON."""
    set_library_path()
    found = [_finding(find_compiler, f"C++ compiler, {USE}"), _finding(find_toolkit, f"toolkit, {USE}")]
    if all(finding["good"] for finding in found):
        found.append(_finding(compile_once, "SGLang's kernels are compiled by"))
    found.append(_finding(find_headers, HEADERS))
    if collocated:
        found.append(_finding(preload, SAVER))
    print(json.dumps(found))


def _finding(check: Callable[[], str], what: str) -> dict[str, Any]:
    try:
        return {"good": True, "what": f"{what}: {check()}"}
    except LackingError as error:
        return error.finding
