"""The trainer and what it hands over, on an NVIDIA GPU: the types and calls that no CPU runs."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen2Config

from arl.bench.trainer_bench import _groups
from arl.config.recipe import Train
from arl.models.packed import PackedContext, _Gathered, _Layout
from arl.models.prefix_tree import prefix_tree
from arl.sync.ipc import IpcTarget
from arl.train.algorithms.ppo import PPO
from arl.train.learner import Learner
from arl.train.micro_batch import pack_groups
from arl.train.packing import Minibatch, Shard
from tests.sync.sender import publish

pytestmark = [
    pytest.mark.usefixtures("alone"),
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: pytest -m gpu"),
]
VOCAB, TOKENS = 1000, 4096
OPEN_HANDLES = """
import pickle, sys, torch
from torch.multiprocessing import reductions
rebuild = reductions.rebuild_cuda_tensor
# SGLang likewise takes the GPU's UUID for its number.
reductions.rebuild_cuda_tensor = lambda *given: rebuild(*given[:6], 0, *given[7:])
for name, tensor in pickle.load(open(sys.argv[1], "rb")):
    print(name, tensor.dtype, tuple(tensor.shape), float(tensor.double().sum()))
"""

STEP_TWICE = """
import hashlib, sys, torch
from arl.config.recipe import Train
from arl.train.algorithms.ppo import PPO
from arl.train.learner import Learner
from tests.train.synthetic import batch, packed
(shard,), report = packed(batch(4, groups=16, size=8), 2)
assert report["packing/saved_fraction"] > 0.1
for _ in range(2):
    learner = Learner(sys.argv[1], Train(dtype=sys.argv[2], minibatches=2, deterministic=True), PPO(), version=4)
    learner.step(shard)
    digest = hashlib.sha256()
    for tensor in learner.policy.full_state(torch.float32).values():
        digest.update(tensor.numpy().tobytes())
    print(digest.hexdigest())
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Grouped heads, tied ends, and blocks that are worth a collective of their own."""
    directory = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    return directory


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(12, 2, 128), (14, 2, 64), (8, 1, 256), (4, 4, 32)])
def test_flash_attention_over_a_prefix_tree_errs_as_bfloat16_does(heads: int, kv_heads: int, dim: int) -> None:
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, 99, 300)
    tails = [rng.integers(0, 99, n) for n in (1, 40, 700, 129, 128, 65)]
    tree = prefix_tree([np.concatenate([prompt, tail]).astype(np.int32) for tail in tails])
    layout = tree.query_offsets, tree.key_offsets, tree.key_indices
    torch.manual_seed(0)
    half = [torch.randn(len(tree.token_ids), n, dim, device="cuda").bfloat16() for n in (heads, kv_heads, kv_heads)]
    weights, scale = torch.randn_like(half[0]), dim**-0.5

    def flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        return PackedContext(*layout).attend(0, q, k, v, scale)[0]

    def gathered(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _Gathered(_Layout(*layout), q, k).attend(q, k, v, scale)

    results = []
    for function, dtype in ((flash, torch.bfloat16), (gathered, torch.float32)):
        inputs = [x.to(dtype).requires_grad_() for x in half]
        out = function(*inputs)
        results.append([out, *torch.autograd.grad((out.float() * weights).sum(), inputs)])
    for ours, exact in zip(*results, strict=True):
        assert (ours.float() - exact).norm() <= 0.02 * exact.norm()


def test_a_step_is_the_same_whatever_is_kept_or_compiled_and_near_that_of_float32(model: Path) -> None:
    ((batch,),) = pack_groups(_groups(TOKENS, VOCAB), TOKENS, ranks=1)
    shard = Shard(
        0, (Minibatch((batch,), loss_tokens=len(batch.loss_scores), loss_sequences=int(batch.sequences.max()) + 1),)
    )
    settings: list[dict[str, object]] = [
        {"dtype": "float32"},
        {},
        {"checkpointing": "selective"},
        {"checkpointing": "full"},
        {"reshard": True},
        {"compile": True},
    ]
    for setting in settings:
        train = Train.model_validate({"dtype": "bfloat16", "minibatches": 1} | setting)
        learner = Learner(model, train, PPO())
        metrics = learner.step(shard)
        if setting == settings[0]:
            exact = metrics
        for name in ("loss", "grad_norm", "entropy"):
            assert metrics[name] == pytest.approx(exact[name], rel=0.03, abs=1e-3), (setting, name)
        state = learner.snapshot()
        assert all(bool(tensor.isfinite().all()) for tensor in state.values())


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_deterministic_step_with_shared_prompts_repeats_to_the_last_bit(model: Path, dtype: str) -> None:
    """Run it in a process of its own: the mode, and the workspace of cuBLAS, are for a whole process."""
    command = [sys.executable, "-c", STEP_TWICE, str(model), dtype]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == second


def test_another_process_opens_the_handles_of_shared_memory(tmp_path: Path) -> None:
    state = {"a": torch.arange(12.0).view(3, 4).bfloat16(), "b": torch.full((5,), 3.0).bfloat16()}
    target = IpcTarget(tmp_path, bucket_bytes=1 << 20)
    update = publish(target, 1 << 20, 1, state)
    (handles,) = Path(update.path).rglob("handles")
    done = subprocess.run(
        [sys.executable, "-c", OPEN_HANDLES, str(handles)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["a torch.bfloat16 (3, 4) 66.0", "b torch.bfloat16 (5,) 15.0"]
    target.discard(update)
