"""Make the command line and the environment of an SGLang server. Torch-free.

server_process.py under SGLang's own interpreter, with the flags arl needs, those of a CPU, then engine.args
"""

import os
from pathlib import Path

from arl.data.model_limits import model_limits
from arl.engine.backend import ServerSpec
from arl.launch.base import Resources
from arl.launch.torch_build import ALONE

CHILD = Path(__file__).with_name("server_process.py")
WARMUP_IDS = 13  # its warm-up sends the ids 10, 11 and 12; an id outside of the vocabulary kills it
CONTEXT_MARGIN = 8  # it ends a request two tokens before its context, silently, and refuses the longest prompts
# Flags that arl gives, and where each value comes from; SGLang also takes any unambiguous beginning of a flag.
RESERVED_FLAGS = {
    "--config": "no file, which could contradict what arl gives: write its flags in engine.args",
    # With these SGLang 0.5.20 sets NCCL variables for itself, and a group whose members differ in them hangs.
    "--enable-symm-mem": "off, because the trainer's ranks would not have its NCCL variables",
    "--enable-nccl-nvls": "off, because the trainer's ranks would not have its NCCL variables",
    # With these it runs another loop than `event_loop_normal`, and a pause in place could mislabel a token's version.
    "--pp-size": "1, because a swap pauses one scheduler between two passes",
    "--pipeline-parallel-size": "1, because a swap pauses one scheduler between two passes",
    "--enable-pdmux": "off, because a swap pauses one scheduler between two passes",
    "--enable-prefill-delayer": "off, because a swap pauses one scheduler between two passes",
    "--disaggregation-mode": "none, because a swap pauses one scheduler between two passes",
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


def command(server: ServerSpec, python: str) -> list[str]:
    """Return the argv of one server, run by the interpreter `python`."""
    config = server.recipe.engine
    limits = model_limits(server.versions.served)
    devices = server.resources.devices
    flags: dict[str, object] = {
        "--port": 0,
        "--host": server.host,
        "--model-path": server.versions.served,
        "--weight-version": server.versions.oldest,
        "--dtype": config.dtype,
        "--max-running-requests": config.slots,
        "--tp-size": config.tensor_parallel,
        "--stream-interval": config.stream_interval,
        "--log-level-http": "warning",
        "--random-seed": server.seed,
        "--context-length": limits.context + CONTEXT_MARGIN,
    }
    switches = ["--incremental-streaming-output", "--skip-tokenizer-init"]
    if server.recipe.train.head == "float32":
        switches.append("--enable-fp32-lm-head")
    if limits.vocab_size < WARMUP_IDS:
        switches.append("--skip-server-warmup")
    if not devices:
        flags |= CPU_FLAGS
        flags["--max-total-tokens"] = config.slots * limits.context
        switches += CPU_SWITCHES
    else:
        flags["--device"] = "cuda"
        # No more requests run at once. By itself SGLang stops at 8 to 512, by the device's memory, and decodes larger
        # batches without graphs.
        flags["--cuda-graph-max-bs-decode"] = config.slots
        if config.dtype == "float32":
            flags["--attention-backend"] = "triton"  # flash attention takes no float32
        if config.kv_policy == "keep":
            switches += KEEP_SWITCHES
        if server.resources.takes_turns:
            switches += ("--enable-memory-saver", "--sleep-on-idle")  # else it polls on a core while ranks step
        if server.resources.memory_share is not None:
            flags["--mem-fraction-static"] = f"{server.resources.memory_share:.3f}"
    argv = [python, str(CHILD)]
    for name, value in flags.items():
        argv += [name, str(value)]
    return [*argv, *switches, *config.args]


def environment(server: ServerSpec, python: str) -> dict[str, str]:
    """Return what is added to the environment of one server."""
    env = {
        "SGLANG_RETURN_ORIGINAL_LOGPROB": "0",  # else logprobs are those of temperature 1
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",  # else /health generates, and fails while paused
        "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0",  # which waits five seconds between a scheduler's death and its own,
        "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",  # and as many at a shutdown of the group
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",  # by CONTEXT_MARGIN, which no request reaches
        "ARL_BROADCAST_SECONDS": str(server.recipe.deadlines.blocked_broadcast),  # for server_plugin.py
        "HF_HUB_OFFLINE": "1",  # the model is a directory
        # A process binds itself to its GPU's socket; otherwise numactl does so, in a script that stays in /tmp.
        "SGLANG_NUMA_BIND_V2": "0",
        **ALONE,
        "PATH": search_path(python),
    }
    addresses = (server.host, os.environ.get("no_proxy"), os.environ.get("NO_PROXY"))
    direct = ",".join(address for address in addresses if address)
    env |= {"no_proxy": direct, "NO_PROXY": direct}  # its warm-up asks itself; the lower-case spelling wins
    if not server.resources.devices:
        env["SGLANG_USE_CPU_ENGINE"] = "1"
    elif server.resources.takes_turns:
        env |= _shared_gpu_environment(server.resources)
    return env


def search_path(python: str) -> str:
    """Return the PATH of SGLang's processes, which compile with their own ninja."""
    return f"{Path(python).parent}{os.pathsep}{os.environ.get('PATH', '')}"


def _shared_gpu_environment(resources: Resources) -> dict[str, str]:
    """Return the variables of a server whose devices belong to trainer ranks as well."""
    env = {}
    if len(resources.devices) > 1:
        # Its check that all devices have equally much free memory would meet ranks that are just loading.
        env["SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK"] = "false"
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        options = os.environ.get(name, "").split(",")
        kept = [option for option in options if "expandable_segments" not in option]
        if kept != options:
            env[name] = ",".join(kept)  # its memory saver refuses expandable segments
    return env
