"""Take whole training steps on a GPU that is only a type: errors of dtype, device and shape are found without one.

A rank of FSDP2 loads a model, computes proximal logprobs, runs packed prefix trees through flash attention, the fused
head and the objective, reduces the gradient, clips, updates with fused AdamW, and gathers the weights as each transport
does. tests/train/fake_gpu.py says how; a process of its own computes all cases. What this cannot find:

    values, races of streams, memory: nothing is computed
    how Triton compiles: tests/kernels/test_triton.py compiles for sm_90, and nothing is launched here
    fused attention of a pack with one segment: it becomes plain products, because only CUDA's build chooses a kernel
    collectives that ranks enter in different order: there is one rank, and the others are assumed
    train.compile, and what calls CUDA's runtime itself: pinned memory, handles, mem_get_info
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.families import FAMILIES, make_family

pytest.importorskip("triton", reason="Triton is not installed here")
pytestmark = [
    pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is built for GPUs: pytest -m gpu"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="no g++, which compiles fake_gpu.cpp"),
]
HERE = Path(__file__).parent
VARLEN = "torch_attn._varlen_attn.default"
COMPUTED = ("aten._fused_adamw_.default", "c10d._allgather_base_.default", "c10d._reduce_scatter_base_.default")
STEPS: dict[str, dict[str, Any]] = {  # each family and each setting once
    "bfloat16": {"family": "qwen3", "train": {"minibatches": 2}, "hands_over": True},
    "float32": {"family": "llama", "train": {"dtype": "float32"}, "groups": 6},  # two micro-batches in the update
    "float16": {
        "family": "gemma-tied",
        "objective": "entropy",
        "train": {"dtype": "float16", "head": "float32", "checkpointing": "full"},
    },
    "HSDP": {
        "family": "qwen2-tied",
        "world_size": 4,
        "train": {"shard_ranks": 2, "reshard": True, "checkpointing": "selective", "halves_every": 1},
        "hands_over": True,
    },
    # Groups of one have no advantage: this rank computes nothing, in step with others.
    "nothing": {"family": "mistral", "objective": "sequences", "train": {"head": "float32"}, "group_size": 1},
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Compute all cases in a process of its own."""
    directory = tmp_path_factory.mktemp("fake_gpu")
    models = {name: str(make_family(name, directory / name)) for name in FAMILIES}
    cases = {name: {**case, "model": models[case["family"]]} for name, case in STEPS.items()}
    (directory / "cases.json").write_text(json.dumps(cases))
    library = directory / "fake_gpu.so"
    torch_directory = Path(torch.__file__).parent
    libraries = torch_directory / "lib"
    run("g++", "-std=c++20", "-shared", "-fPIC", f"-I{torch_directory / 'include'}", str(HERE / "fake_gpu.cpp"),
        "-o", str(library), f"-L{libraries}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{libraries}")  # fmt: skip
    said = run(sys.executable, "-m", "tests.train.fake_steps", str(directory / "cases.json"), LD_PRELOAD=str(library))
    found: dict[str, dict[str, Any]] = json.loads(said.splitlines()[-1])
    return found


def run(*command: str, **environment: str) -> str:
    """Return what a command that succeeds prints."""
    done = subprocess.run(
        command,
        env=os.environ | environment,
        cwd=HERE.parent.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("name", STEPS)
def test_a_rank_takes_a_step_on_a_gpu(name: str, results: dict[str, dict[str, Any]]) -> None:
    result = results[name]
    assert "error" not in result, result["trace"]
    computed = result["computed"]
    assert computed.keys() >= set(COMPUTED)
    train = STEPS[name].get("train", {})
    is_half = train.get("dtype", "bfloat16") != "float32"
    assert (VARLEN in computed) == (is_half and name != "nothing")
    assert ("aten.addmm.dtype_out" in computed) == is_half  # d weight in float32 of products in half precision
    assert ("aten.mm.dtype_out" in computed) == (train.get("head") == "float32" and is_half)
