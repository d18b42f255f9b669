"""Have SGLang itself read the handles of tensors on GPUs, worker by worker, from the request to what loads weights.

There is no GPU. So torch's own part is replaced on both sides: a file takes the place of a GPU's memory, its path that
of CUDA's handle. What lies between is real: arl's pickles, the JSON of a request, SGLang's decoding, its unpickler and
its search for a GPU by UUID.
"""

import json
import subprocess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor
from torch.multiprocessing import reductions

from arl.sync.buckets import make_buckets
from arl.sync.ipc import handles_on_gpu
from arl.sync.loading import specs_of, unflatten

pytestmark = pytest.mark.sglang
UUIDS = ["11111111-2222-3333-4444-555555555555", "66666666-7777-8888-9999-000000000000"]
READ = """
import json, sys, types
import torch
from pydantic import TypeAdapter
from torch.multiprocessing import reductions

mapped = []

def map_file(cls, size, stride, offset, storage, dtype, device, handle, length, begin, *_):
    mapped.append(device)
    memory = torch.from_file(handle.decode(), shared=True, size=begin + length, dtype=torch.uint8)[begin:]
    return memory.view(dtype).as_strided(size, stride, offset)

uuids = json.loads(sys.argv[1])
reductions.rebuild_cuda_tensor = map_file
torch.cuda.device_count = lambda: len(uuids)
torch.cuda.get_device_properties = lambda device: types.SimpleNamespace(uuid=uuids[device])

from sglang.srt.managers.io_struct import UpdateWeightsFromTensorReqInput
from sglang.srt.managers.tp_worker import BaseTpWorker

class Worker(BaseTpWorker):
    forward_batch_generation = model_runner = None  # the abstract ones

request = TypeAdapter(UpdateWeightsFromTensorReqInput).validate_python(json.load(sys.stdin))
found = []
for rank in range(len(uuids)):
    loaded = []
    load = lambda named_tensors, load_format: (not loaded.extend(named_tensors), load_format)
    worker = Worker()
    worker.ps = types.SimpleNamespace(tp_rank=rank)
    worker.model_runner = types.SimpleNamespace(weight_updater=types.SimpleNamespace(update_weights_from_tensor=load))
    assert worker.update_weights_from_tensor(request) == (True, None)
    tensors = [
        {
            "name": name,
            "dtype": str(tensor.dtype),
            "values": tensor.tolist(),
            "is_copy": tensor.untyped_storage().nbytes() == tensor.nbytes,
        }
        for name, tensor in loaded
    ]
    found.append({"devices": mapped[:], "tensors": tensors})
    mapped.clear()
print()
print(json.dumps(found))
"""


def _handles(worker: int, state: dict[str, Tensor], memory: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Return the handles of one bucket as the rank beside this worker makes them; `memory` stands for its GPU's."""
    specs = specs_of(state)
    (bucket,) = make_buckets(specs, 1 << 20)
    size = sum(value.nbytes for value in state.values())
    flat = torch.from_file(str(memory), shared=True, size=size, dtype=torch.uint8)
    for name, view in unflatten(flat, bucket).items():
        view.copy_(state[name])

    def reduce_tensor(view: Tensor) -> tuple[Any, tuple[Any, ...]]:
        """Return what torch's does for a tensor on a GPU, which is number 0 in each rank's process."""
        storage = view.untyped_storage()
        place = (0, bytes(memory), storage.nbytes(), 0)
        counted = (False, b"reference counter", 0, b"event", True)
        kind = torch.storage.TypedStorage
        shape = (type(view), view.size(), view.stride(), view.storage_offset(), kind, view.dtype)
        return reductions.rebuild_cuda_tensor, (*shape, *place, *counted)

    monkeypatch.setattr(reductions, "reduce_tensor", reduce_tensor)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid=UUIDS[worker]))
    return bytes(ForkingPickler.dumps(handles_on_gpu(flat, bucket)))


def test_each_worker_of_sglang_maps_its_own_ranks_memory_on_the_gpu_of_that_uuid(
    sglang_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It copies what it may write to, the vectors, and maps the rest."""
    payloads = []
    states = []
    for worker in range(len(UUIDS)):
        matrix = torch.arange(12.0).view(3, 4) + 100 * worker
        norm = torch.full((5,), float(worker), dtype=matrix.dtype)
        states.append({"layer.q_proj.weight": matrix, "layer.norm.weight": norm, "head.weight": -matrix})
        payloads.append(_handles(worker, states[-1], tmp_path / f"gpu-{worker}", monkeypatch))
    monkeypatch.undo()
    body = msgspec.json.encode({"serialized_named_tensors": payloads, "weight_version": "1", "flush_cache": False})
    done = subprocess.run(
        [sglang_python, "-P", "-c", READ, json.dumps(UUIDS)],
        input=body,
        capture_output=True,
        check=False,
        timeout=300,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for worker, (state, read) in enumerate(zip(states, found, strict=True)):
        assert read["devices"] == [worker] * len(state)
        for (name, value), tensor in zip(state.items(), read["tensors"], strict=True):
            assert tensor == {
                "name": name,
                "dtype": str(value.dtype),
                "values": value.tolist(),
                "is_copy": value.ndim == 1,
            }
