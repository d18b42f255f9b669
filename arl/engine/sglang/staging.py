"""Have SGLang on a CPU receive broadcast weights while it generates. It runs in SGLang's processes, like plugin.py.

    a bucket                    ─► a thread receives it; the scheduler goes on                     no pause
    no bucket                   ─► wait for the thread: everything is here, or the group broke     none to speak of,
                                   because it is asked when everything was sent
    no bucket, and a version    ─► load what was received                                          while paused

SGLang itself receives in its scheduler, which generates nothing meanwhile. On a GPU that stays so: a second copy of
the weights would take memory from the cache. There, too, a wait that nobody ends is given up.
"""

import os
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import torch
from sglang.srt.managers.communicator import FanOutCommunicator
from sglang.srt.managers.io_struct import UpdateWeightsFromDistributedReqOutput
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from torch import Tensor

STAGES = "stages buckets"  # arl.sync.weight_messages looks for it in the answer to a group that is joined
BUCKETS = "flattened_bucket"
GROUP_NAME = 4  # its place among the arguments of WeightUpdater.init_weights_update_group
BROADCAST_SECONDS = "ARL_BROADCAST_SECONDS"  # environment: when a rank gives up a broadcast that does not move
BLOCKING_WAIT = "TORCH_NCCL_BLOCKING_WAIT"
UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater"
SCHEDULER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
TOKENIZER = "sglang.srt.managers.tokenizer_control_mixin.TokenizerControlMixin"


def register() -> None:
    """Register the hooks; SGLang calls this in each of its processes."""
    around = HookType.AROUND
    HookRegistry.register(f"{UPDATER}.init_custom_process_group", join_in_time, around)
    HookRegistry.register(f"{UPDATER}.WeightUpdater.init_weights_update_group", join, around)
    HookRegistry.register(f"{UPDATER}.WeightUpdater.destroy_weights_update_group", leave, around)
    HookRegistry.register(f"{SCHEDULER}.update_weights_from_distributed", stage, around)
    HookRegistry.register(f"{TOKENIZER}.update_weights_from_distributed", forward, around)


class StagedBuckets:
    """Receive the buckets of one group in a thread."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self._thread = ThreadPoolExecutor(1, "broadcast")
        self._parts: list[Future[list[tuple[str, Tensor]]]] = []

    def receive(self, request: Any) -> None:
        """Receive one more bucket, once those before it are here."""
        part = self._thread.submit(self._receive, request.names, request.dtypes, request.shapes)
        self._parts.append(part)

    def wait(self) -> list[tuple[str, Tensor]]:
        """Return all tensors that were received since they were last dropped.

        Raises:
            RuntimeError: the group broke, or nothing came in time.
        """
        tensors = []
        for part in self._parts:
            tensors += part.result()
        return tensors

    def drop(self) -> None:
        """Forget what was received."""
        self._parts = []

    def close(self) -> None:
        """Receive nothing more."""
        self._group = None
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _receive(self, names: list[str], dtypes: list[str], shapes: list[list[int]]) -> list[tuple[str, Tensor]]:
        kinds = [getattr(torch, dtype) for dtype in dtypes]
        sizes = []
        for kind, shape in zip(kinds, shapes, strict=True):
            sizes.append(torch.Size(shape).numel() * kind.itemsize)
        flat = torch.empty(sum(sizes), dtype=torch.uint8)
        torch.distributed.broadcast(flat, src=0, group=self._group)
        parts = torch.split(flat, sizes)
        tensors = []
        for name, part, kind, shape in zip(names, parts, kinds, shapes, strict=True):
            tensor = part.view(kind).view(shape)
            tensors.append((name, tensor))
        return tensors


_staged: dict[str, StagedBuckets] = {}  # by group


def join_in_time(original: Any, *args: Any, **options: Any) -> Any:
    """Join a group, each of whose waits ends after the run's deadline rather than after half an hour.

    With NCCL it then raises an error; torch's watchdog would end this server instead. The variable is read when a group
    is made, so SGLang's own groups are not concerned.
    """
    seconds = float(os.environ[BROADCAST_SECONDS])
    options = {**options, "init_method": tunnelled(options["init_method"])}
    before = os.environ.get(BLOCKING_WAIT)
    os.environ[BLOCKING_WAIT] = "1"
    try:
        return original(*args, **{**options, "timeout": timedelta(seconds=seconds)})
    finally:
        if before is None:
            del os.environ[BLOCKING_WAIT]
        else:
            os.environ[BLOCKING_WAIT] = before


def tunnelled(address: str) -> str:
    """Return where the store at tcp://host:port is reached: through a tunnel, if its servers show a certificate.

    The tunnel lasts as long as this process, because nobody reports that SGLang has left a group.
    """
    if "ARL_TLS" not in os.environ:
        return address
    from arl_store_tunnel import LOOPBACK, StoreTunnel
    from arl_tls import CERTIFICATE, client_context, tls_folder

    place = urlsplit(address)
    folder = tls_folder(place.hostname)
    if folder is None:
        return address
    context = client_context(folder / CERTIFICATE)
    tunnel = StoreTunnel(place.hostname, place.port, os.environ["ARL_RUN_KEY"], context)
    return f"tcp://{LOOPBACK}:{tunnel.port}"


def join(original: Any, updater: Any, *args: Any, **options: Any) -> tuple[bool, str]:
    """Join a group, and on a CPU answer that its buckets are staged."""
    joined, message = original(updater, *args, **options)
    if not joined or updater.device != "cpu":
        return joined, message
    name = options["group_name"] if "group_name" in options else args[GROUP_NAME]
    _staged[name] = StagedBuckets(updater._model_update_group[name])
    return True, STAGES


def leave(original: Any, updater: Any, group_name: str) -> tuple[bool, str]:
    """Leave a group, and drop what was received in it."""
    staged = _staged.pop(group_name, None)
    if staged is not None:
        staged.close()
    left: tuple[bool, str] = original(updater, group_name)
    return left


def stage(original: Any, manager: Any, request: Any) -> Any:
    """Receive a bucket in a thread, wait for all of them, or load them; see the head of this file."""
    staged = _staged.get(request.group_name)
    if staged is None or request.load_format != BUCKETS:
        return original(manager, request)
    if request.names:
        staged.receive(request)
        return _answer(True, "on its way")
    try:
        tensors = staged.wait()
    except Exception as error:  # a scheduler that raises takes its server down
        staged.drop()
        return _answer(False, f"the broadcast broke off: {error}")
    if request.weight_version is None:
        return _answer(True, "received")
    staged.drop()
    return _load(manager, tensors, request)


def _load(manager: Any, tensors: list[tuple[str, Tensor]], request: Any) -> Any:
    """Load what was received, as SGLang does: without a flush unless one is asked for, and record the version."""
    try:
        manager.tp_worker.model_runner.weight_updater.get_model().load_weights(tensors)
    except Exception as error:
        return _answer(False, f"what was received could not be loaded: {error!r}")
    manager.flush_cache_after_weight_update(request)
    manager.record_weight_version_after_update(request.weight_version)
    return _answer(True, "loaded")


def _answer(success: bool, message: str) -> Any:
    return UpdateWeightsFromDistributedReqOutput(success=success, message=message)


async def forward(original: Any, tokenizer: Any, request: Any, context: Any = None) -> tuple[bool, str]:
    """Send what needs no pause to the scheduler at once. SGLang's own way waits until no request is open."""
    is_staged = tokenizer.server_args.device == "cpu" and request.load_format == BUCKETS
    needs_pause = request.weight_version is not None
    if not is_staged or needs_pause:
        answer: tuple[bool, str] = await original(tokenizer, request, context)
        return answer
    tokenizer.auto_create_handle_loop()
    results = await tokenizer.update_weights_from_distributed_communicator(request)
    merged: tuple[bool, str] = FanOutCommunicator.merge_results(results)
    return merged
