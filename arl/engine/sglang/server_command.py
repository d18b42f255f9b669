"""SGLang's server: which interpreter runs it, with which flags and environment. Torch-free.

engine.python ─► look_at: its version ─► server_process.py, with the flags arl needs, a CPU's, then engine.args
"""

import os
import shutil
import subprocess
from pathlib import Path

from msgspec import Struct

from arl.config.recipe import EngineConfig
from arl.data.model_limits import Limits
from arl.errors import InputError
from arl.launch.address import LOOPBACK
from arl.launch.base import Resources

CHILD = Path(__file__).with_name("server_process.py")
TESTED = "0.5.20"
NEEDS_SPANS = (0, 5, 18)  # from here on it tells which version sampled which token
NEEDS_HOOKS = (0, 5, 20)  # where arl/engine/sglang/plugin.py was seen to work
WARMUP_IDS = 13  # its warm-up sends the ids 10, 11 and 12; an id outside of the vocabulary kills it
CONTEXT_MARGIN = 8  # it ends a request two tokens before its context, silently, and refuses the longest prompts
LOOK_SECONDS = 60.0
INSTALL = f"""install it in an environment of its own. With GPUs:
    python3 -m venv ENV && ENV/bin/pip install sglang=={TESTED}      then give engine.python: ENV/bin/python
Without, in a clone of arl, which then finds it by itself:
    .ci/sglang"""
ALONE = {"PYTHONPATH": ""}  # our packages are not for another interpreter
# There are no compiled kernels for a CPU without AMX: everything in torch's own operations.
CPU_FLAGS = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--grammar-backend", "none", "--disable-overlap-schedule", "--sleep-on-idle", "--mem-fraction-static", "0.1"),
)
FLOAT32_FLAGS = ("--attention-backend", "triton")  # flash attention takes no float32


class Interpreter(Struct, frozen=True):
    """A Python that has SGLang."""

    path: str
    version: str  # of SGLang

    @property
    def tells_spans(self) -> bool:
        return self._numbers >= NEEDS_SPANS

    @property
    def tells_checksums(self) -> bool:
        return self._numbers >= NEEDS_HOOKS

    @property
    def _numbers(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.version.split(".")[:3] if part.isdecimal())


def interpreter(python: str | None) -> str:
    """Path of `python`; None: ARL_SGLANG_PYTHON, or the interpreter of the environment that .ci/sglang builds."""
    place = os.environ.get("ARL_SGLANG_ENV", Path.home() / ".cache" / "arl" / "sglang")
    python = python or os.environ.get("ARL_SGLANG_PYTHON") or str(Path(place) / "bin" / "python")
    # Links stay: an environment's interpreter is one, and where it points to is not the environment.
    return os.path.abspath(shutil.which(os.path.expanduser(python)) or python)


def look_at(python: str | None) -> Interpreter:
    """Find SGLang in `interpreter(python)`.

    Raises:
        InputError: no such interpreter, or no SGLang in it; says how to install it.
    """
    path = interpreter(python)
    probe = "from importlib.metadata import version; print(version('sglang'))"
    try:
        done = subprocess.run(
            [path, "-c", probe],
            capture_output=True,
            text=True,
            timeout=LOOK_SECONDS,
            check=False,
            env={**os.environ, **ALONE},
            cwd="/",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"engine.python {path}: cannot be run ({error}). {_remedy()}") from error
    *_, version = ["", *done.stdout.split()]  # behind what a wrapper may have said
    if done.returncode or not version[:1].isdecimal():
        said = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}, and no answer"]
        raise InputError(f"engine.python {path}: there is no SGLang in it ({said[-1]}). {_remedy()}")
    return Interpreter(path, version)


def _remedy() -> str:
    return f"Give an interpreter that has it, or {INSTALL}"


def command(
    config: EngineConfig, python: str, model: str, version: int, resources: Resources, limits: Limits, seed: int
) -> list[str]:
    """The argv of one server; `limits` are those of `model`."""
    return [
        *(python, str(CHILD), "--port", "0", "--model-path", model, "--weight-version", str(version)),
        *(
            "--dtype",
            config.dtype,
            "--max-running-requests",
            str(config.slots),
            "--tp-size",
            str(len(resources.devices) or 1),
        ),
        *("--stream-interval", str(config.stream_interval), "--incremental-streaming-output"),
        *("--skip-tokenizer-init", "--log-level-http", "warning", "--random-seed", str(seed)),
        *("--context-length", str(limits.context + CONTEXT_MARGIN)),
        *(("--skip-server-warmup",) if limits.vocab_size < WARMUP_IDS else ()),
        *(CPU_FLAGS if not resources.devices else ()),
        *(FLOAT32_FLAGS if resources.devices and config.dtype == "float32" else ()),
        *(("--enable-memory-saver",) if resources.devices and resources.takes_turns else ()),
        *(("--max-total-tokens", str(config.slots * limits.context)) if not resources.devices else ()),
        *config.args,
    ]


def environment(python: str, resources: Resources) -> dict[str, str]:
    """What is added to the environment of one server."""
    cpu = {"SGLANG_USE_CPU_ENGINE": "1"} if not resources.devices else {}
    direct = ",".join(filter(None, (LOOPBACK, os.environ.get("no_proxy"), os.environ.get("NO_PROXY"))))
    return {
        **cpu,
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",  # else /health generates, and fails while paused
        "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0",  # which lets five seconds pass between a scheduler's death and its own,
        "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",  # and as many at a shutdown of the group
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",  # by CONTEXT_MARGIN, which no request reaches
        "HF_HUB_OFFLINE": "1",  # the model is a directory
        **dict.fromkeys(("no_proxy", "NO_PROXY"), direct),  # its warm-up asks itself; the small spelling wins
        **ALONE,
        "PATH": f"{Path(python).parent}{os.pathsep}{os.environ.get('PATH', '')}",  # it compiles with its own ninja
    }
