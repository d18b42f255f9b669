"""Find the interpreter that has SGLang, and which version it has. Torch-free.

engine.python, or ARL_SGLANG_PYTHON, or what .ci/sglang has built ─► run it once ─► path and version
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

from msgspec import Struct

from arl.errors import InputError
from arl.launch.torch_build import last_line, run_code

TESTED = "0.5.20"
FIRST_WITH_SPANS = (0, 5, 18)  # it reports which version sampled which token
FIRST_WITH_HOOKS = (0, 5, 20)  # arl/engine/sglang/plugin.py was seen to work
PROBE_SECONDS = 60.0
# Packages that SGLang imports on GPUs only; it names the versions that fit among its own requirements.
GPU_PACKAGES = ("sglang-kernel", "flashinfer_python", "torch_memory_saver")
LACKS = "lacks "  # begins the line of a requirement that is not met
PROBE = f"""
from importlib.metadata import PackageNotFoundError, requires, version
sglang = version("sglang")
for requirement in requires("sglang") or ():
    name, _, exact = requirement.partition(";")[0].partition("==")
    name = name.partition("[")[0].partition(">")[0].strip()
    if name not in {GPU_PACKAGES!r}:
        continue
    try:
        fits = exact.strip() in ("", version(name))
    except PackageNotFoundError:
        fits = False
    if not fits:
        print({LACKS!r} + requirement)
print(sglang)
"""
INSTALL = f"""install it in an environment of its own. With GPUs:
    python3 -m venv ENV && ENV/bin/pip install sglang=={TESTED}      then give engine.python: ENV/bin/python
Without, in a clone of arl, which then finds it by itself:
    .ci/sglang"""
REMEDY = f"Give an interpreter that has it, or {INSTALL}"


class Interpreter(Struct, frozen=True):
    """Describe a Python that has SGLang."""

    path: str
    version: str  # of SGLang
    lacking: tuple[str, ...] = ()  # requirements of SGLang that only GPUs need, and that are not met

    @property
    def reports_spans(self) -> bool:
        return self._numbers >= FIRST_WITH_SPANS

    @property
    def reports_checksums(self) -> bool:
        return self._numbers >= FIRST_WITH_HOOKS

    @property
    def _numbers(self) -> tuple[int, ...]:
        """Return the release that the version belongs to: 0.5.20rc1 is (0, 5, 20)."""
        numbers = re.findall(r"\d+", self.version)
        return tuple(int(number) for number in numbers[:3])


def interpreter(python: str | None) -> str:
    """Return the path of `python`; None: of ARL_SGLANG_PYTHON, or of the environment that .ci/sglang builds."""
    environment = os.environ.get("ARL_SGLANG_ENV", Path.home() / ".cache" / "arl" / "sglang")
    built = str(Path(environment) / "bin" / "python")
    chosen = python or os.environ.get("ARL_SGLANG_PYTHON") or built
    found = shutil.which(os.path.expanduser(chosen)) or chosen
    # Links are kept: an environment's interpreter is a link, and its target does not belong to the environment.
    return os.path.abspath(found)


def find_sglang(python: str | None) -> Interpreter:
    """Ask `interpreter(python)` for the version of its SGLang, and for what it lacks on GPUs.

    Raises:
        InputError: no such interpreter, or no SGLang in it; says how to install it.
    """
    path = interpreter(python)
    done = _run(path, PROBE)
    words = done.stdout.split()
    version = words[-1] if words else ""  # a wrapper may print something first
    if done.returncode or not version[:1].isdecimal():
        raise InputError(f"engine.python {path}: there is no SGLang in it ({last_line(done)}). {REMEDY}")
    lacking = [line.removeprefix(LACKS) for line in done.stdout.splitlines() if line.startswith(LACKS)]
    return Interpreter(path, version, tuple(lacking))


def _run(path: str, code: str) -> subprocess.CompletedProcess[str]:
    """Have the interpreter at `path` run `code`.

    Raises:
        InputError: it cannot be run, or takes longer than a minute.
    """
    try:
        return run_code(path, code, PROBE_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"engine.python {path}: cannot be run ({error}). {REMEDY}") from error
