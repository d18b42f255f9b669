"""A step says what it costs, and does not wait for the device before it must."""

from pathlib import Path
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from arl.train.algorithms.decoupled_ppo import DecoupledPPO
from arl.train.algorithms.gspo import GSPO
from arl.train.algorithms.objective import Objective
from arl.train.algorithms.ppo import PPO
from tests.train.gradients import gradient_of
from tests.train.one_rank import learner, shard_of
from tests.train.synthetic import batch

pytestmark = pytest.mark.usefixtures("alone")


class Asked(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts numbers that the host takes from a tensor, for each of which it waits where the tensor is a GPU's."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.numbers += func.name() in ("aten::_local_scalar_dense", "aten::is_nonzero")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "objective",
    [
        PPO(),
        DecoupledPPO(proximal="loglinear"),
        GSPO(proximal="loglinear", clip_low=0.2, clip_high=0.2),
    ],
    ids=lambda o: o.kind,
)
def test_nobody_waits_for_the_device_until_an_update_has_its_norm(tiny: Path, objective: Objective) -> None:
    trained = learner(tiny, objective, minibatches=1)
    (minibatch,) = shard_of(batch(4, groups=4, size=4), minibatches=1, capacity=64).minibatches
    with Asked() as asked:  # type: ignore[no-untyped-call]
        gradient_of(trained, minibatch)
    assert len(minibatch.micro_batches) > 2
    assert asked.numbers == 1  # the loss, which this test asked for
