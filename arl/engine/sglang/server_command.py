"""Make the command line and the environment of an SGLang server. Torch-free.

server_process.py under SGLang's own interpreter, with the flags arl needs, those of a CPU, then engine.args
"""

import os
from pathlib import Path

from arl.config.engine_section import EngineConfig
from arl.data.model_limits import model_limits
from arl.engine.backend import ServerSpec
from arl.engine.sglang.installed import ALONE
from arl.launch.base import Resources

CHILD = Path(__file__).with_name("server_process.py")
WARMUP_IDS = 13  # its warm-up sends the ids 10, 11 and 12; an id outside of the vocabulary kills it
CONTEXT_MARGIN = 8  # it ends a request two tokens before its context, silently, and refuses the longest prompts
# Flags that arl gives, and where each value comes from; SGLang also takes any unambiguous beginning of a flag.
RESERVED_FLAGS = {
    "--model-path": "model.path",
    "--model": "model.path",
    "--tp-size": "engine.tensor_parallel",
    "--tensor-parallel-size": "engine.tensor_parallel",
    "--dtype": "engine.dtype",
    "--enable-fp32-lm-head": "train.head",
    "--max-running-requests": "engine.slots",
    "--stream-interval": "engine.stream_interval",
    "--random-seed": "seed",
    "--weight-version": "the published version",
    "--host": "always the launcher's address",
    "--port": "always a free one",
    "--api-key": "the key of the run",
}
# There are no compiled kernels for a CPU without AMX, so everything runs in torch's own operations.
CPU_FLAGS = {
    "--device": "cpu",
    "--attention-backend": "torch_native",
    "--sampling-backend": "pytorch",
    "--grammar-backend": "none",
    "--mem-fraction-static": "0.1",
}
CPU_SWITCHES = ("--disable-overlap-schedule", "--sleep-on-idle")


def command(server: ServerSpec, python: str) -> list[str]:
    """Return the argv of one server, run by the interpreter `python`."""
    config = server.recipe.engine
    limits = model_limits(server.versions.served)
    argv = [python, str(CHILD), "--port", "0"]
    argv += _flags(
        {
            "--host": server.host,
            "--model-path": server.versions.served,
            "--weight-version": server.versions.oldest,
            "--dtype": config.dtype,
            "--max-running-requests": config.slots,
            "--tp-size": len(server.resources.devices) or 1,
            "--stream-interval": config.stream_interval,
            "--log-level-http": "warning",
            "--random-seed": server.seed,
            "--context-length": limits.context + CONTEXT_MARGIN,
        }
    )
    argv += ["--incremental-streaming-output", "--skip-tokenizer-init"]
    if server.recipe.train.head == "float32":
        argv += ["--enable-fp32-lm-head"]
    if limits.vocab_size < WARMUP_IDS:
        argv += ["--skip-server-warmup"]
    if not server.resources.devices:
        argv += _flags(CPU_FLAGS | {"--max-total-tokens": str(config.slots * limits.context)})
        argv += CPU_SWITCHES
    else:
        argv += _gpu_flags(config, server.resources)
    return [*argv, *config.args]


def environment(server: ServerSpec, python: str) -> dict[str, str]:
    """Return what is added to the environment of one server."""
    env = {
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",  # else /health generates, and fails while paused
        "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0",  # which waits five seconds between a scheduler's death and its own,
        "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",  # and as many at a shutdown of the group
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",  # by CONTEXT_MARGIN, which no request reaches
        "HF_HUB_OFFLINE": "1",  # the model is a directory
        **ALONE,
        "PATH": f"{Path(python).parent}{os.pathsep}{os.environ.get('PATH', '')}",  # it compiles with its own ninja
    }
    direct = _without_proxy(server.host)
    env |= {"no_proxy": direct, "NO_PROXY": direct}  # its warm-up asks itself; the lower-case spelling wins
    if not server.resources.devices:
        env["SGLANG_USE_CPU_ENGINE"] = "1"
    return env


def _gpu_flags(config: EngineConfig, resources: Resources) -> list[str]:
    flags = []
    if config.dtype == "float32":
        flags += ["--attention-backend", "triton"]  # flash attention takes no float32
    if resources.takes_turns:
        flags += ["--enable-memory-saver"]
    return flags


def _flags(values: dict[str, object] | dict[str, str]) -> list[str]:
    flags = []
    for name, value in values.items():
        flags += [name, str(value)]
    return flags


def _without_proxy(host: str) -> str:
    """List the addresses that are reached directly: `host`, and the user's own."""
    addresses = (host, os.environ.get("no_proxy"), os.environ.get("NO_PROXY"))
    return ",".join(address for address in addresses if address)
