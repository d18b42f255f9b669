"""Change a few things in SGLang's own processes, where arl is not. Standard library, torch and SGLang only.

SGLang loads this file as a plugin in each of its processes (server_process.py), and `register` says what changes.
Checksums: SGLang's `/weights_checker` hashes its own fused tensors, on CUDA only. With this plugin it answers with the
sha256 of every weight under its published name, split out of the fused ones; with one worker.
Broadcasts: each wait of a group ends after the run's deadline, where a sender that dies would hold it for half an hour.
Prefixes: `/flush_cache` drops them also while a pause has put open requests back in line, where SGLang refuses.
Versions: every increment says which version sampled which of its request's tokens, where SGLang says it with the last.
Loads: the file in which its processes share their load lies in a folder that goes with the server, not in /dev/shm.
"""

import hashlib
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

CHECKSUMS = "sglang.srt.utils.weight_checker.WeightChecker._compute_checksum"
LOADS = "sglang.srt.managers.load_snapshot.shm_path_for"
FLUSH = "sglang.srt.managers.scheduler.Scheduler.flush_cache"
STREAM = "sglang.srt.managers.scheduler_components.output_streamer._GenerationStreamAccumulator.to_payload"
GROUPS = "sglang.srt.model_executor.model_runner_components.weight_updater.init_custom_process_group"
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def register(place: str) -> None:
    """Register the hooks; SGLang calls this in each of its processes. `place` is the server's folder."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(CHECKSUMS, answer, HookType.REPLACE)
    HookRegistry.register(GROUPS, join_in_time, HookType.AROUND)
    HookRegistry.register(FLUSH, flush_between_passes, HookType.AROUND)
    HookRegistry.register(STREAM, tell_versions, HookType.BEFORE)
    HookRegistry.register(LOADS, lambda _: f"{place}/loads", HookType.REPLACE)


def join_in_time(original: Any, *args: Any, **options: Any) -> Any:
    """Join a group, each of whose waits ends after the run's deadline.

    With NCCL it then raises an error; torch's watchdog would end this server instead. The variable is read when a group
    is made, and SGLang's own groups are made before.
    """
    os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
    timeout = timedelta(seconds=float(os.environ["ARL_BROADCAST_SECONDS"]))
    return original(*args, **{**options, "timeout": timeout})


def flush_between_passes(original: Any, scheduler: Any, *args: Any, **options: Any) -> Any:
    """Drop every prefix, in a pause also while requests wait: such a request holds no cache, and none of it is in use.

    SGLang has put those that ran behind those that never did. Each rank must do the same, so no clock decides.
    """
    if not scheduler._engine_paused:
        return original(scheduler, *args, **options)
    queue = scheduler.waiting_queue
    waiting = sorted(queue, key=lambda request: not request.is_retracted)
    queue.clear()
    try:
        return original(scheduler, *args, **options)
    finally:
        queue.extend(waiting)


def tell_versions(streamed: Any, **_: Any) -> None:
    """Fill in the versions of requests that have not ended. One call a pass: each costs the scheduler time."""
    from sglang.srt.utils.weight_versions import compute_weight_version_spans

    for i, request in enumerate(streamed.output_reqs):
        if streamed.weight_versions[i] is None:
            streamed.weight_versions[i] = compute_weight_version_spans(
                request.weight_version_events, streamed.current_weight_version, request.send_token_offset
            )


def answer(checker: Any) -> dict[str, Any]:
    """Return what SGLang's `_compute_checksum` would, with the checksums of the published weights."""
    found = {name: sha256(value) for name, value in published(checker._get_model())}
    return {"checksums": found, "per_gpu_checksum": "", "parallelism_info": checker._parallelism_info().model_dump()}


def published(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield every weight under its published name, a tied one once.

    What SGLang pads is cut off: the vocabulary, and on a CPU the MLPs.
    """
    width = getattr(model.config, "original_intermediate_size", None)  # of an MLP before padding; None: not padded
    for path, module in model.named_modules():
        parent, _, kind = path.rpartition(".")
        for name, value in module.named_parameters(recurse=False):
            if kind in FUSED:
                rows = value.split(module.output_sizes)
                kept = width if kind == "gate_up_proj" else None
                for part, own in zip(FUSED[kind], rows, strict=True):
                    yield f"{parent}.{part}.{name}", own[:kept]
            elif kind == "down_proj":
                yield f"{path}.{name}", value[:, :width]
            else:
                vocabulary = getattr(module, "org_vocab_size", None)
                yield f"{path}.{name}", value[:vocabulary]


def sha256(value: Any) -> str:
    """Return the sha256 of a weight's bytes, in row-major order."""
    import torch

    flat = value.detach().cpu().contiguous().flatten()
    return hashlib.sha256(flat.view(torch.uint8).numpy().data).hexdigest()
