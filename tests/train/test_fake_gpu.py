"""Take whole training steps on a GPU that is only a type: errors of dtype, device and shape are found without one.

A rank of FSDP2 loads a model, computes proximal logprobs, runs packed prefix trees through flash attention, the fused
head and the objective, reduces the gradient, clips, updates with fused AdamW, and gathers the weights as each transport
does. tests/train/fake_gpu.py says how; a process of its own computes all cases. What this cannot find:

    values, races of streams, memory: nothing is computed
    how Triton compiles: tests/kernels/test_triton.py compiles for sm_90; here only arguments are checked
    fused attention of a pack with one segment: it becomes plain products, because only CUDA's build chooses a kernel
    collectives that ranks enter in different order: there is one rank, and the others are assumed
    train.compile, and what calls CUDA's runtime itself: pinned memory, handles, mem_get_info
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
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
ROOT = HERE.parent.parent
VARLEN = "torch_attn._varlen_attn.default"
Case = dict[str, Any]
Results = dict[str, dict[str, Any]]
# Each family and each setting once; the grids have them in many combinations.
STEPS: dict[str, Case] = {
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
# Operations that raise on a GPU under torch.use_deterministic_algorithms(True), of those that sequences may want. The
# documentation of that function has all of them. cuDNN's attention is refused in the choice of an implementation.
NOT_DETERMINISTIC = {
    "_cudnn_attention_backward",
    "bincount",
    "cumsum",
    "histc",
    "kthvalue",
    "median",
    "nll_loss_forward",
    "put",
    "scatter_reduce",
}
Compute = Callable[[dict[str, Case]], Results]


@pytest.fixture(scope="module")
def compute(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Compute:
    """Return a function that computes cases in a process of its own."""
    directory = tmp_path_factory.mktemp("fake_gpu")
    cache = request.config.cache
    library = compiled(directory if cache is None else cache.mkdir("fake_gpu"))
    models = {name: str(make_family(name, directory / name)) for name in FAMILIES}

    def run(cases: dict[str, Case]) -> Results:
        given = {name: {**case, "model": models[case["family"]]} for name, case in cases.items()}
        file = directory / "cases.json"
        file.write_text(json.dumps(given))
        command = [sys.executable, "-m", "tests.train.fake_steps", str(file)]
        environment = os.environ | {"LD_PRELOAD": str(library)}
        done = subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=1500
        )
        assert done.returncode == 0, done.stderr[-4000:]
        results: Results = json.loads(done.stdout.splitlines()[-1])
        return results

    return run


def compiled(directory: Path) -> Path:
    """Return fake_gpu.cpp compiled against this torch, from `directory` if it is there."""
    source = HERE / "fake_gpu.cpp"
    torch_directory = Path(torch.__file__).parent
    libraries = torch_directory / "lib"
    made_of = [source.read_text(), torch.__version__, str(libraries)]
    digest = hashlib.sha256("\n".join(made_of).encode()).hexdigest()
    library = directory / f"{digest}.so"
    if library.exists():
        return library
    temporary = library.with_suffix(f".{os.getpid()}")
    command = ["g++", "-std=c++20", "-shared", "-fPIC", f"-I{torch_directory / 'include'}"]
    command += [str(source), "-o", str(temporary)]
    command += [f"-L{libraries}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{libraries}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    temporary.rename(library)  # at once, because other test processes may look for it
    return library


@pytest.fixture(scope="module")
def results(compute: Compute) -> Results:
    return compute(STEPS)


@pytest.mark.parametrize("name", STEPS)
def test_a_rank_takes_a_step_on_a_gpu(name: str, results: Results) -> None:
    result = results[name]
    assert "error" not in result, result["trace"]
    computed = result["computed"]
    for operation in (
        "aten._fused_adamw_.default",
        "c10d._allgather_base_.default",
        "c10d._reduce_scatter_base_.default",
    ):
        assert computed[operation], operation
    dtype = STEPS[name].get("train", {}).get("dtype", "bfloat16")
    is_half = dtype != "float32"
    assert (VARLEN in computed) == (is_half and name != "nothing")
    assert ("aten.addmm.dtype_out" in computed) == is_half  # d weight in float32 of products in half precision
    has_wide_head = STEPS[name].get("train", {}).get("head") == "float32"
    assert ("aten.mm.dtype_out" in computed) == (has_wide_head and is_half)


@pytest.mark.parametrize("name", STEPS)
def test_torch_has_a_deterministic_form_of_every_operation_of_a_step(name: str, results: Results) -> None:
    computed = {operation.split(".")[1].rstrip("_") for operation in results[name]["computed"]}
    assert "index_select" in computed
    assert not computed & NOT_DETERMINISTIC
