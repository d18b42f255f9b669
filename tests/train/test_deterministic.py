"""With train.deterministic a step with shared prompts runs in torch's deterministic mode, and repeats to the last bit.

On a CPU it would repeat anyway. What is shown here is that torch accepts every operation; tests/train/test_gpu.py
compares bits on a GPU.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from arl.config.recipe import Train
from arl.train.algorithms.decoupled_ppo import DecoupledPPO
from arl.train.algorithms.gspo import GSPO
from arl.train.algorithms.objective import Objective
from arl.train.learner import Learner
from arl.train.sharding import CUBLAS_WORKSPACE
from tests.train.synthetic import batch, packed


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(CUBLAS_WORKSPACE, "restored when the test ends")
    monkeypatch.delenv(CUBLAS_WORKSPACE)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    yield
    torch.use_deterministic_algorithms(False)
    if dist.is_initialized():
        dist.destroy_process_group()


def stepped(model: Path, objective: Objective, train: Train) -> dict[str, torch.Tensor]:
    """Take two steps on groups whose prompts are stored once; return the weights."""
    learner = Learner(model, train, objective, version=4)
    for version in (4, 5):
        (shard,), report = packed(batch(version, groups=4, size=4), 2, capacity=300, objective=objective)
        assert report["packing/saved_fraction"] > 0.1
        learner.step(shard)
    return learner.policy.full_state(torch.float32)


@pytest.mark.parametrize(
    ("objective", "dtype"), [(DecoupledPPO(), "float32"), (GSPO(clip_low=0.2, clip_high=0.2), "bfloat16")]
)
def test_torch_accepts_every_operation_of_a_step_with_shared_prompts_and_it_repeats(
    tiny: Path, objective: Objective, dtype: str
) -> None:
    train = Train.model_validate({"dtype": dtype, "minibatches": 2, "learning_rate": 1e-3, "deterministic": True})
    first = stepped(tiny, objective, train)
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    second = stepped(tiny, objective, train)
    for name, weight in first.items():
        assert torch.equal(weight, second[name]), name
