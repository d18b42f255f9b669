"""SGLang as a backend: servers under an interpreter of their own, driven over HTTP. Torch-free.

engine.python, or ARL_SGLANG_PYTHON, or what .ci/sglang has built ─► run it once ─► path and version
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

from msgspec import structs

from arl.config.capabilities import Capabilities
from arl.config.engine_section import EngineConfig
from arl.config.recipe import Recipe
from arl.data.model_limits import model_config
from arl.engine.backend import Backend, Installation, ServerSpec
from arl.engine.sglang import server_command
from arl.errors import InputError
from arl.launch.base import Command
from arl.launch.torch_build import last_line, run_code

TESTED = "0.5.20"
OLDEST = (0, 5, 20)  # it says which version sampled which token, and has what server_plugin.py hooks into
PROBE_SECONDS = 60.0
TOOLKIT = Path(__file__).with_name("cuda_toolkit.py")
# Packages that SGLang imports on GPUs only; it names the versions that fit among its own requirements.
GPU_PACKAGES = ("sglang-kernel", "flashinfer_python", "torch_memory_saver")
# The environment on GPUs: every package in one version, because one that SGLang requires is not on PyPI. These
# versions have wheels for two Pythons, and for this glibc or a newer one.
GPU_LOCK = Path(__file__).with_name("requirements-gpu.txt")
PYTHONS = ("3.12", "3.11")
GLIBC = (2, 34)
LACKS = "lacks "  # begins the line of a requirement that is not met
# Looks at the interpreter first: without SGLang it says why there is none.
PROBE = f"""
import platform, sys
python, libc = platform.python_version(), platform.libc_ver()
if "%d.%d" % sys.version_info[:2] not in {PYTHONS!r}:
    print({LACKS!r} + "Python {" or ".join(reversed(PYTHONS))} (this is %s)" % python)
if libc[0] != "glibc" or tuple(map(int, libc[1].split(".")[:2])) < {GLIBC!r}:
    print({LACKS!r} + "glibc {".".join(map(str, GLIBC))} or newer (this is %s)" % (libc[1] or "another libc"))
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


def remedy() -> str:
    """Say how to install SGLang, with a Python of this machine for which its requirements have wheels."""
    names = [f"python{version}" for version in PYTHONS]
    python = next(filter(shutil.which, names), names[0])
    return f"""Give an interpreter that has it, or install it in an environment of its own. With GPUs:
    apt install g++ {python}-dev {python}-venv
    {python} -m venv ENV && ENV/bin/pip install --no-deps -r {GPU_LOCK}
and give engine.python: ENV/bin/python. Without, in a clone of arl, which then finds it by itself:
    .ci/sglang"""


def interpreter(python: str | None) -> str:
    """Return the path of `python`; None: of ARL_SGLANG_PYTHON, or of the environment that .ci/sglang builds."""
    environment = os.environ.get("ARL_SGLANG_ENV", Path.home() / ".cache" / "arl" / "sglang")
    built = str(Path(environment) / "bin" / "python")
    chosen = python or os.environ.get("ARL_SGLANG_PYTHON") or built
    found = shutil.which(os.path.expanduser(chosen)) or chosen
    # Links are kept: an environment's interpreter is a link, and its target does not belong to the environment.
    return os.path.abspath(found)


def find_sglang(python: str | None) -> Installation:
    """Ask `interpreter(python)` for the version of its SGLang, and for what it lacks on GPUs.

    Raises:
        InputError: no such interpreter, or no SGLang in it; says how to install it.
    """
    path = interpreter(python)
    try:
        done = run_code(path, PROBE, PROBE_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"engine.python {path}: cannot be run ({error}). {remedy()}") from error
    lacking = [line.removeprefix(LACKS) for line in done.stdout.splitlines() if line.startswith(LACKS)]
    words = done.stdout.split()
    version = words[-1] if words else ""  # a wrapper may print something first
    if done.returncode or not version[:1].isdecimal():
        why = "".join(f"; on GPUs it needs {each}" for each in lacking)
        raise InputError(f"engine.python {path}: there is no SGLang in it ({last_line(done)}){why}. {remedy()}")
    release = tuple(int(number) for number in re.findall(r"\d+", version)[:3])  # of 0.5.20rc1: (0, 5, 20)
    if release < OLDEST:
        raise InputError(f"engine.python {path}: arl needs SGLang {TESTED} or newer, and this is {version}. {remedy()}")
    note = "" if version == TESTED else f"arl is tested with {TESTED}"
    return Installation("SGLang", version, path, SGLangBackend.capabilities, note, tuple(lacking), remedy())


class SGLangBackend(Backend):
    """Serve SGLang; see arl.engine.backend."""

    capabilities = Capabilities(
        kv_policies=("recompute", "keep"),
        transports=("file", "broadcast", "ipc"),
        releases_memory=True,
        versions_per_token=True,
        deterministic_seeds=False,  # only with --enable-deterministic-inference, which no CPU attention supports
        checksums=True,
        tensor_parallel=True,
        own_interpreter=True,
        reserved_flags=server_command.RESERVED_FLAGS,
        reserved_variables=server_command.RESERVED_VARIABLES,
    )

    def probe(self, config: EngineConfig) -> Installation:
        """See Backend.probe. It runs the interpreter that `config.python` names."""
        found = find_sglang(config.python)
        environment = {"PATH": server_command.search_path(found.place), **config.environment}
        code = f"import os, runpy; os.environ.update({environment!r}); runpy.run_path({str(TOOLKIT)!r})['report']"
        return structs.replace(found, examination=code)

    def refuse_model(self, path: str, recipe: Recipe) -> None:
        """See Backend.refuse_model."""
        config = model_config(path)
        if getattr(config, "mlp_bias", False):
            raise InputError(
                f"model.path {path}: its MLPs have biases (mlp_bias), which SGLang's Llama leaves out without a word; "
                "choose another model, or use engine.kind embedded"
            )
        if recipe.sync.check and config.model_type == "gemma":
            raise InputError(
                f"sync.check true: SGLang adds one to the norms of {path} when it loads them, and rounds, so what was "
                "published cannot be recovered from what it holds; leave it out for Gemma, or use engine.kind embedded"
            )

    def command(self, server: ServerSpec) -> Command:
        """See Backend.command."""
        python = interpreter(server.recipe.engine.python)
        return Command(tuple(server_command.command(server, python)), server_command.environment(server, python))
