"""Make the command line and the environment of an SGLang server. Torch-free.

server_process.py under SGLang's own interpreter, with the flags arl needs, those of a CPU, then engine.args

Flags of the user that break what arl needs are refused before anything starts; those that arl gives itself, while the
recipe is read.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from arl.config.engine_section import EngineConfig
from arl.data.model_limits import model_limits
from arl.engine.backend import ServerSpec
from arl.errors import RecipeError
from arl.launch.base import Resources
from arl.launch.torch_build import ALONE

FILE_OF_FLAGS = "--config"
# With these flags SGLang sets these variables for itself, whatever its environment says: entrypoints/engine.py, 0.5.20.
NCCL_FLAGS = {
    "--enable-symm-mem": ("NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE"),
    "--enable-nccl-nvls": ("NCCL_NVLS_ENABLE",),
}
ON = "1"
# Each of them chooses another loop of SGLang's scheduler than `event_loop_normal`; see server_command.KEEP_SWITCHES.
OVERLAPPING_FLAGS = {
    "--enable-prefill-delayer": "it works only with overlapped scheduling",
    "--pp-size": "pipeline stages have no pause in place",
    "--pipeline-parallel-size": "pipeline stages have no pause in place",
    "--enable-pdmux": "its scheduler has no pause in place",
    "--disaggregation-mode": "its schedulers have no pause in place",
}


def refuse_contradictions(config: EngineConfig) -> None:
    """Check the user's flags against what arl needs.

    Raises:
        RecipeError: names the flag, the reason and the remedy.
    """
    if is_given(FILE_OF_FLAGS, config.args):
        raise RecipeError(
            f"engine.args {FILE_OF_FLAGS}: a file could contradict flags that arl gives; write its flags in engine.args"
        )
    for flag, variables in NCCL_FLAGS.items():
        for variable in variables:
            _refuse_hidden_setting(flag, variable, config)
    if config.kv_policy != "keep":
        return
    for flag, reason in OVERLAPPING_FLAGS.items():
        if is_given(flag, config.args):
            raise RecipeError(
                f"engine.args {flag}: with engine.kv_policy keep a server must pause between two passes, and {reason}; "
                "leave it out, or use engine.kv_policy recompute"
            )


def is_given(flag: str, args: Sequence[str]) -> bool:
    """Return whether `args` hold `flag`, spelled out or shortened, as SGLang's parser allows.

    >>> is_given("--config", ["--conf=server.yaml"]), is_given("--config", ["--context-length", "9"])
    (True, False)
    """
    for argument in args:
        beginning = argument.partition("=")[0]
        if len(beginning) > len("--") and flag.startswith(beginning):
            return True
    return False


def _refuse_hidden_setting(flag: str, variable: str, config: EngineConfig) -> None:
    """Raise RecipeError if `flag` gives `variable` a value that the trainer's ranks would not learn of."""
    value = config.environment.get(variable, os.environ.get(variable))
    if is_given(flag, config.args) and value != ON:
        raise RecipeError(
            f"engine.args {flag}: SGLang then sets {variable}={ON} for itself, and the trainer's ranks need the same "
            f"value; add engine.environment {{{variable}: {ON}}}, from which they take it, or leave the flag out"
        )


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
    "--ssl-certfile": "the certificate of the run",
    "--ssl-keyfile": "the certificate of the run",
}
# There are no compiled kernels for a CPU without AMX, so everything runs in torch's own operations.
CPU_FLAGS = {
    "--device": "cpu",
    "--attention-backend": "torch_native",
    "--sampling-backend": "pytorch",
    "--grammar-backend": "none",
    "--mem-fraction-static": "0.3",  # a ceiling: --max-total-tokens decides; weights of 0.5 GB did not fit into 0.1
}
CPU_SWITCHES = ("--disable-overlap-schedule", "--sleep-on-idle")
# With overlapped scheduling a pause in place leaves one launched pass in the scheduler's `result_queue`
# (`pause_generation` in managers/scheduler.py returns at once). Its tokens were sampled with the old weights, but the
# change of version counts the tokens that are appended already (utils/weight_versions.py), so that one token of each
# open request would carry the new version. `event_loop_normal` appends a pass's tokens before it looks for a pause.
KEEP_SWITCHES = ("--disable-overlap-schedule",)
# Variables that arl gives, and why; the first would hide the temperature from the recorded logprobs.
RESERVED_VARIABLES = {
    "SGLANG_RETURN_ORIGINAL_LOGPROB": "0, because the trainer needs the logprobs that tokens were sampled with",
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0, because a paused server must be healthy",
    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1, because a server gets a few tokens more than the model's context",
    "SGLANG_USE_CPU_ENGINE": "the placement of the run",
    "HF_HUB_OFFLINE": "1, because the model is a directory",
}
EXPANDABLE = "expandable_segments"


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
        "SGLANG_RETURN_ORIGINAL_LOGPROB": "0",  # else logprobs are those of temperature 1
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",  # else /health generates, and fails while paused
        "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0",  # which waits five seconds between a scheduler's death and its own,
        "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",  # and as many at a shutdown of the group
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",  # by CONTEXT_MARGIN, which no request reaches
        "ARL_BROADCAST_SECONDS": str(server.recipe.deadlines.blocked_broadcast),  # for server_process.py
        "HF_HUB_OFFLINE": "1",  # the model is a directory
        **ALONE,
        "PATH": f"{Path(python).parent}{os.pathsep}{os.environ.get('PATH', '')}",  # it compiles with its own ninja
    }
    direct = _without_proxy(server.host)
    env |= {"no_proxy": direct, "NO_PROXY": direct}  # its warm-up asks itself; the lower-case spelling wins
    if not server.resources.devices:
        env["SGLANG_USE_CPU_ENGINE"] = "1"
    elif server.resources.takes_turns:
        env |= _shared_gpu_environment(server.resources)
    return env


def _gpu_flags(config: EngineConfig, resources: Resources) -> list[str]:
    # No more requests run at once. By itself SGLang stops at 8 to 512, by the device's memory, and decodes larger
    # batches without graphs.
    flags = ["--device", "cuda", "--cuda-graph-max-bs-decode", str(config.slots)]
    if config.dtype == "float32":
        flags += ["--attention-backend", "triton"]  # flash attention takes no float32
    if config.kv_policy == "keep":
        flags += KEEP_SWITCHES
    if resources.takes_turns:
        flags += ["--enable-memory-saver"]
    if resources.memory_share is not None:
        flags += ["--mem-fraction-static", f"{resources.memory_share:.3f}"]
    return flags


def _shared_gpu_environment(resources: Resources) -> dict[str, str]:
    """Return the variables of a server whose devices belong to trainer ranks as well."""
    env = {}
    if len(resources.devices) > 1:
        # Its check that all devices have equally much free memory would meet ranks that are just loading.
        env["SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK"] = "false"
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        options = os.environ.get(name, "").split(",")
        kept = [option for option in options if EXPANDABLE not in option]
        if kept != options:
            env[name] = ",".join(kept)  # its memory saver refuses expandable segments
    return env


def _flags(values: dict[str, object] | dict[str, str]) -> list[str]:
    flags = []
    for name, value in values.items():
        flags += [name, str(value)]
    return flags


def _without_proxy(host: str) -> str:
    """List the addresses that are reached directly: `host`, and the user's own."""
    addresses = (host, os.environ.get("no_proxy"), os.environ.get("NO_PROXY"))
    return ",".join(address for address in addresses if address)
