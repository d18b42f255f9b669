"""Change a few things in SGLang's own processes, where arl is not. Standard library, torch and SGLang only.

SGLang loads this file as a plugin in each of its processes (server_process.py), and `register` says what changes.
Weights: one request receives a whole version, bucket by bucket: the next one arrives while one is loaded. SGLang by
itself takes a request for each bucket, and nothing arrives between them.
Checksums: SGLang's `/weights_checker` hashes its own fused tensors, on CUDA only. With this plugin it answers with the
sha256 of every weight under its published name, split out of the fused ones; with one worker.
Groups: each wait ends after the run's deadline, where a sender that dies would hold it for half an hour. The first
broadcast, at which NCCL makes its communicator, is a byte when the group is joined. A group is left without waiting.
Prefixes: `/flush_cache` drops them also while a pause has put open requests back in line, where SGLang refuses.
Versions: every increment says which version sampled which of its request's tokens, where SGLang says it with the last.
Loads: the file in which its processes share their load lies in a folder that goes with the server, not in /dev/shm.
"""

import hashlib
import itertools
import math
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

CHECKSUMS = "sglang.srt.utils.weight_checker.WeightChecker._compute_checksum"
LOADS = "sglang.srt.managers.load_snapshot.shm_path_for"
UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater"
BUCKETS = "buckets:"  # begins the load format of arl.engine.http.wire.UpdateFromDistributed
FLUSH = "sglang.srt.managers.scheduler.Scheduler.flush_cache"
STREAM = "sglang.srt.managers.scheduler_components.output_streamer._GenerationStreamAccumulator.to_payload"
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def register(place: str) -> None:
    """Register the hooks; SGLang calls this in each of its processes. `place` is the server's folder."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(CHECKSUMS, answer, HookType.REPLACE)
    HookRegistry.register(f"{UPDATER}.init_custom_process_group", join_in_time, HookType.AROUND)
    HookRegistry.register(f"{UPDATER}.WeightUpdater.destroy_weights_update_group", leave_at_once, HookType.AROUND)
    HookRegistry.register(f"{UPDATER}.WeightUpdater.update_weights_from_distributed", receive, HookType.AROUND)
    HookRegistry.register(FLUSH, flush_between_passes, HookType.AROUND)
    HookRegistry.register(STREAM, tell_versions, HookType.BEFORE)
    HookRegistry.register(LOADS, lambda _: f"{place}/loads", HookType.REPLACE)


def join_in_time(original: Any, *args: Any, **options: Any) -> Any:
    """Join a group, each of whose waits ends after the run's deadline.

    With NCCL it then raises an error; torch's watchdog would end this server instead. BLOCKING_WAIT is read when a
    group is made, and SGLang's own groups are made before.
    """
    import torch

    seconds = float(os.environ["ARL_BROADCAST_SECONDS"])
    os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
    os.environ["TORCH_NCCL_NONBLOCKING_TIMEOUT"] = str(math.ceil(seconds))
    group = original(*args, **{**options, "timeout": timedelta(seconds=seconds)})
    device = "cuda" if options["backend"] == "nccl" else "cpu"
    # Else the making of a communicator has no deadline. Read at the first broadcast of a group, for this one alone.
    os.environ["TORCH_NCCL_USE_COMM_NONBLOCKING"] = "1"
    try:
        torch.distributed.broadcast(torch.zeros(1, dtype=torch.uint8, device=device), src=0, group=group)
    except RuntimeError:
        abort(group)
        raise
    finally:
        del os.environ["TORCH_NCCL_USE_COMM_NONBLOCKING"]
    return group


def leave_at_once(original: Any, updater: Any, group_name: str) -> Any:
    """Leave a group; with NCCL without waiting for what other ranks owe, because one of them may be dead."""
    group = updater._model_update_group.pop(group_name, None)
    if group is None:
        return original(updater, group_name)
    try:
        abort(group)
    except Exception as error:  # whatever it is, SGLang answers with it and lives
        return False, f"left, and not closed: {error!r}"
    return True, "left"


def abort(group: Any) -> None:
    """Close this rank's connections of a group."""
    from torch.distributed import distributed_c10d as c10d

    if c10d.get_backend(group) == "nccl":
        c10d._abort_process_group(group)
    else:
        c10d.destroy_process_group(group)


def receive(
    original: Any, updater: Any, names: Any, dtypes: Any, shapes: Any, group_name: str, load_format: str | None = None
) -> tuple[bool, str]:
    """Receive a version and load it; return whether that succeeded, and a message, as SGLang's own function does.

    Two buckets are held: on a GPU one arrives in NCCL's stream while the current stream copies the other one into the
    model. NCCL waits for what was queued in the current stream when its broadcast began, the copies before that.
    """
    import torch

    if load_format is None or not load_format.startswith(BUCKETS):
        answer: tuple[bool, str] = original(updater, names, dtypes, shapes, group_name, load_format)
        return answer
    updater._assert_weight_cache_inactive("update_weights_from_distributed")  # as the original does
    group = updater._model_update_group.get(group_name)
    if group is None:
        return False, f"group {group_name} was not joined"
    specs = zip(names, (getattr(torch, dtype) for dtype in dtypes), shapes, strict=True)
    counts = map(int, load_format.removeprefix(BUCKETS).split(","))
    buckets = [list(itertools.islice(specs, count)) for count in counts]

    def begin(bucket: Any) -> tuple[Any, Any]:
        size = sum(dtype.itemsize * math.prod(shape) for _, dtype, shape in bucket)
        flat = torch.empty(size, dtype=torch.uint8, device=updater.device)
        return flat, torch.distributed.broadcast(flat, src=0, group=group, async_op=True)

    try:
        coming = begin(buckets[0])
        for bucket, following in itertools.zip_longest(buckets, buckets[1:]):
            flat, work = coming
            work.wait()
            if following is not None:
                coming = begin(following)
            updater.get_model().load_weights(tensors_of(flat, bucket))
    except Exception as error:  # whatever it is, SGLang answers with it and lives
        return False, f"version not received, and the weights may be mixed: {error!r}"
    return True, "received"


def tensors_of(flat: Any, bucket: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and the tensor of each (name, dtype, shape); they lie one after the other in `flat`, uint8."""
    end = 0
    for name, dtype, shape in bucket:
        begin = end
        end += dtype.itemsize * math.prod(shape)
        yield name, flat[begin:end].view(dtype).view(shape)


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
