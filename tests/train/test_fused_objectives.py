"""The head that makes the gradient in its forward honors every setting of an objective."""

from pathlib import Path

import pytest
import torch

from arl.config.recipe import Train
from arl.train.algorithms.decoupled_ppo import DecoupledPPO
from arl.train.algorithms.objective import Objective
from arl.train.algorithms.ppo import PPO
from arl.train.learner import Learner
from tests.train.columns import comparable
from tests.train.synthetic import batch, packed

pytestmark = pytest.mark.usefixtures("alone")


class UnfusedPPO(PPO):
    """Is computed from all log-probabilities at once, and differentiated by autograd alone."""

    scope = "sequence"  # type: ignore[assignment]


class UnfusedDecoupledPPO(DecoupledPPO):
    """Likewise."""

    scope = "sequence"  # type: ignore[assignment]


OFF = {"behavior_weight": "off"}
MASKED = {"behavior_weight": "masked", "behavior_weight_cap": 1.5}
CASES = [
    (PPO, UnfusedPPO, {}),
    (PPO, UnfusedPPO, {"dual_clip": 1.5}),
    (PPO, UnfusedPPO, {"entropy_coefficient": 0.3}),
    (DecoupledPPO, UnfusedDecoupledPPO, {"entropy_coefficient": 0.3}),
    (DecoupledPPO, UnfusedDecoupledPPO, {}),
    (DecoupledPPO, UnfusedDecoupledPPO, {"dual_clip": 1.5, "behavior_weight_cap": 1.2}),
    (DecoupledPPO, UnfusedDecoupledPPO, OFF),
    (DecoupledPPO, UnfusedDecoupledPPO, MASKED),
    (DecoupledPPO, UnfusedDecoupledPPO, MASKED | {"proximal": "loglinear", "dual_clip": 1.1}),
]


@pytest.mark.parametrize(("fused", "unfused", "settings"), CASES)
def test_the_fused_head_takes_the_step_of_autograd(
    tiny: Path, fused: type[Objective], unfused: type[Objective], settings: dict[str, object]
) -> None:
    (shard,), _ = packed(batch(4, groups=8, size=4), 2, 200)
    results = []
    for kind in (fused, unfused):
        train = Train(dtype="float32", learning_rate=1e-2, eps=1e-3, minibatches=2)
        learner = Learner(tiny, train, kind.model_validate(settings), version=4)
        metrics = learner.step(shard)
        compared = {
            name: comparable(value) for name, value in metrics.items() if not name.startswith(("time/", "hardware/"))
        }
        results.append((compared, learner.sharded.full_state(torch.float32)))
    (ours, weights), (theirs, expected) = results
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert value == pytest.approx(theirs[name], rel=1e-3, abs=1e-4), name
    for name, weight in weights.items():
        torch.testing.assert_close(weight, expected[name], rtol=0, atol=1e-4, msg=name)
    if "dual_clip" in settings:
        assert ours["ratio/dual_clip_fraction"] != 0
    assert ("behavior_weight/capped_fraction" in ours) == (fused is DecoupledPPO and settings != OFF)
