"""With train.deterministic a step with shared prompts runs in torch's deterministic mode, and repeats to the last bit.

On a CPU it would repeat anyway. What is shown here is that torch accepts every operation; tests/train/test_gpu.py
compares bits on a GPU.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from arl.train.algorithms.decoupled_ppo import DecoupledPPO
from arl.train.algorithms.gspo import GSPO
from arl.train.algorithms.objective import Objective
from arl.train.sharding import CUBLAS_WORKSPACE
from tests.train.one_rank import assert_same_weights, learner, shard_of, weights
from tests.train.synthetic import batch

pytestmark = pytest.mark.usefixtures("alone")


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(CUBLAS_WORKSPACE, "restored when the test ends")
    monkeypatch.delenv(CUBLAS_WORKSPACE)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    ("objective", "dtype"), [(DecoupledPPO(), "float32"), (GSPO(clip_low=0.2, clip_high=0.2), "bfloat16")]
)
def test_torch_accepts_every_operation_of_a_step_with_shared_prompts_and_it_repeats(
    tiny: Path, objective: Objective, dtype: str
) -> None:
    trained = [learner(tiny, objective, dtype=dtype, deterministic=True) for _ in range(2)]
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    for one in trained:
        one.step(shard_of(batch(4, groups=4, size=4), capacity=300))
    assert_same_weights(weights(trained[0]), weights(trained[1]), 0.0)
