"""One rank in this process."""

import functools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from arl.config.recipe import TinyModel, Train
from arl.data import msgpack_arrays
from arl.errors import TrainerError
from arl.metrics.names import number
from arl.models.tiny import make_tiny_model
from arl.sync.file_target import FileTarget
from arl.sync.publisher import Publisher
from arl.tasks import running_checksum
from arl.train import learner as learner_module
from arl.train.algorithms.decoupled_ppo import DecoupledPPO
from arl.train.algorithms.grpo import GRPO
from arl.train.algorithms.gspo import GSPO
from arl.train.algorithms.objective import Objective
from arl.train.algorithms.ppo import PPO
from arl.train.cost import peak_flops
from arl.train.learner import Learner
from arl.train.loss_sequence import LossSequence, loss_sequences
from arl.train.packer import pack_groups
from arl.train.shard import Shard
from arl.types import Batch, Trajectory, WeightUpdate
from tests.extending.my_objective import Reinforce as WithPenalty
from tests.train.gradients import gradient_of
from tests.train.synthetic import batch, packed

PROXIMALS: tuple[Literal["recompute", "loglinear"], ...] = ("recompute", "loglinear")


@pytest.fixture(autouse=True, scope="module")
def _alone() -> Iterator[None]:
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def learner(model: Path, objective: Objective | None = None, **train: Any) -> Learner:
    settings = {"minibatches": 2, "dtype": "float32", "learning_rate": 1.5e-4} | train
    return Learner(model, Train.model_validate(settings), objective or DecoupledPPO(), version=4)


def shard_of(given: Batch, minibatches: int = 2, capacity: int = 16_384) -> Shard:
    (shard,), _ = packed(given, minibatches, capacity)
    return shard


def weights(trained: Learner) -> dict[str, torch.Tensor]:
    return trained.sharded.full_state(torch.float32)


def assert_same_weights(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], tolerance: float) -> None:
    for name, weight in a.items():
        torch.testing.assert_close(weight, b[name], rtol=0, atol=tolerance, msg=name)


def logprobs(trained: Learner, sequences: list[LossSequence]) -> torch.Tensor:
    """Score the loss tokens of one pack, (N,)."""
    ((pack,),) = pack_groups([sequences], 16_384, ranks=1)
    with torch.no_grad():
        logprob, _ = trained.sharded.score(pack)
    return logprob[torch.from_numpy(pack.loss_scores).long()]


def with_advantage(trajectory: Trajectory, advantage: float) -> LossSequence:
    at = np.flatnonzero(trajectory.loss_mask)
    return LossSequence(
        token_ids=trajectory.token_ids,
        loss_at=at,
        behavior_logprobs=trajectory.behavior_logprobs[at],
        policy_versions=trajectory.policy_versions[at],
        advantages=np.full(len(at), advantage, np.float32),
    )


def rewarded(given: Batch) -> list[LossSequence]:
    chosen = [t for g in given.groups for t in g.trajectories if t.reward == 1.0]
    return [with_advantage(t, 1.0) for t in chosen]


def on_policy(trained: Learner, given: Batch) -> Batch:
    """The same trajectories with the logprobs that the learner itself gives them."""
    groups = []
    for g in given.groups:
        trajectories = []
        for t in g.trajectories:
            recorded = t.behavior_logprobs.copy()
            recorded[t.loss_mask] = logprobs(trained, [with_advantage(t, 1.0)]).numpy()
            versions = np.where(t.loss_mask, given.version, -1).astype(np.int32)
            trajectories.append(msgspec.structs.replace(t, behavior_logprobs=recorded, policy_versions=versions))
        groups.append(msgspec.structs.replace(g, trajectories=tuple(trajectories)))
    return Batch(given.version, tuple(groups))


def test_a_few_steps_raise_the_probability_of_rewarded_trajectories(tiny: Path) -> None:
    trained = learner(tiny, learning_rate=1e-3)
    given = batch(4, groups=8, size=4)
    before = logprobs(trained, rewarded(given)).mean()
    for version in range(4, 8):
        trained.step(shard_of(on_policy(trained, batch(version, groups=8, size=4))))
    assert logprobs(trained, rewarded(given)).mean() > before + 0.05
    assert trained.version == 8


@pytest.mark.parametrize("objective", [DecoupledPPO(), GSPO(clip_low=0.2, clip_high=0.2)], ids=lambda o: o.kind)
def test_micro_batches_do_not_change_the_step(tiny: Path, objective: Objective) -> None:
    whole, cut = learner(tiny, objective), learner(tiny, objective)
    given = batch(4, groups=8, size=4)
    a, b = whole.step(shard_of(given)), cut.step(shard_of(given, capacity=64))
    assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
    assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-4)
    assert_same_weights(weights(whole), weights(cut), 1e-5)


def test_leaving_out_trajectories_without_gradient_does_not_change_the_gradient(tiny: Path) -> None:
    given = batch(4, groups=4, size=4)
    equal = tuple(msgspec.structs.replace(t, reward=1.0) for t in given.groups[0].trajectories)
    given = Batch(4, (msgspec.structs.replace(given.groups[0], trajectories=equal), *given.groups[1:]))
    (short,) = shard_of(given, minibatches=1).minibatches
    everything = []
    for g, kept in zip(given.groups, _kept(given), strict=True):
        everything.append(kept or [with_advantage(t, 0.0) for t in g.trajectories])
    (packs,) = pack_groups(everything, 16_384, ranks=1)
    full = Shard(4, (msgspec.structs.replace(short, micro_batches=packs),))
    assert len(full.minibatches[0].micro_batches[0].loss_scores) > len(short.micro_batches[0].loss_scores)
    a, b = learner(tiny, minibatches=1), learner(tiny, minibatches=1)
    first, second = a.step(Shard(4, (short,))), b.step(full)
    assert first["loss"] == pytest.approx(second["loss"], rel=1e-5)
    assert first["grad_norm"] == pytest.approx(second["grad_norm"], rel=1e-5)
    assert_same_weights(weights(a), weights(b), 1e-6)


def _kept(given: Batch) -> list[list[LossSequence]]:
    return [[s for s in group if s.advantages.any()] for group in loss_sequences(given, GRPO())]


def test_a_batch_without_any_gradient_still_makes_a_version(tiny: Path) -> None:
    trained = learner(tiny)
    given = batch(4, groups=4, size=1)
    before = weights(trained)
    metrics = trained.step(shard_of(given))
    assert metrics["loss"] == 0.0
    assert metrics["grad_norm"] == 0.0
    assert trained.version == 5
    assert_same_weights(before, weights(trained), 0.0)


@pytest.mark.parametrize(
    "objective",
    [DecoupledPPO(), PPO(), GSPO(clip_low=0.2, clip_high=0.2), WithPenalty()],
    ids=lambda o: type(o).__name__,
)
def test_a_batch_without_any_loss_token_still_makes_a_version(tiny: Path, objective: Objective) -> None:
    """Such as one of an environment in which the policy never spoke."""
    trained = learner(tiny, objective)
    (shard,), report = packed(silent(batch(4, groups=4, size=2)), minibatches=2, objective=objective)
    metrics = trained.step(shard)
    assert metrics["loss"] == metrics["grad_norm"] == report["tokens/trained"] == 0.0
    assert report["advantage/zero_fraction"] == 1.0
    assert "entropy" not in metrics
    assert trained.version == 5


def silent(given: Batch) -> Batch:
    """The same batch, in which no token is in the loss."""
    groups = []
    for group in given.groups:
        quiet = [msgspec.structs.replace(t, loss_mask=np.zeros_like(t.loss_mask)) for t in group.trajectories]
        groups.append(msgspec.structs.replace(group, trajectories=tuple(quiet)))
    return Batch(given.version, tuple(groups))


def test_naive_and_decoupled_agree_on_a_policys_own_samples_and_differ_on_old_ones(tiny: Path) -> None:
    def loss(objective: Objective, own: bool) -> float:
        trained = learner(tiny, objective, minibatches=1)
        given = batch(4, groups=4, size=4)
        shard = shard_of(on_policy(trained, given) if own else given, minibatches=1)
        return number(trained.step(shard), "grad_norm")

    assert loss(PPO(), own=True) == pytest.approx(loss(DecoupledPPO(), own=True), rel=1e-4)
    assert loss(PPO(), own=False) != pytest.approx(loss(DecoupledPPO(), own=False), rel=1e-2)


def test_the_second_minibatch_is_centered_on_the_weights_before_the_step(tiny: Path) -> None:
    """One update moves the policy; the proximal policy stays behind, so ratios leave 1 by as much as it moved."""
    given = on_policy(learner(tiny), batch(4, groups=4, size=4))
    moved = learner(tiny, learning_rate=1e-2).step(shard_of(given))
    unmoved = learner(tiny, learning_rate=1e-9).step(shard_of(given))
    assert number(moved, "ratio/max") > 1.05
    assert unmoved["ratio/max"] == pytest.approx(1.0, abs=1e-4)
    assert moved["behavior_weight/mean"] == pytest.approx(1.0, abs=1e-5)  # proximal is the sampling policy, not current


def test_loglinear_runs_no_proximal_pass_and_centers_between_behavior_and_current(tiny: Path) -> None:
    given = batch(4, groups=4, size=4)
    trained = learner(tiny, DecoupledPPO(proximal="loglinear"))
    assert trained._proximal_pass(shard_of(given).minibatches) == [None, None]
    old = batch(4, groups=4, size=4)
    kl = {
        p: number(learner(tiny, DecoupledPPO(proximal=p)).step(shard_of(old)), "kl/behavior_proximal")
        for p in PROXIMALS
    }
    assert 0 < kl["loglinear"] < kl["recompute"]


def test_the_first_forward_on_own_samples_finds_ratio_and_weight_one(tiny: Path) -> None:
    trained = learner(tiny, minibatches=1)
    metrics = trained.step(shard_of(on_policy(trained, batch(4, groups=4, size=4)), 1))
    assert metrics["ratio/max"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["behavior_weight/mean"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["kl/behavior_proximal"] == pytest.approx(0.0, abs=1e-6)


def test_bfloat16_computes_nearly_the_same_step_on_float32_master_weights(tiny: Path) -> None:
    given = batch(4, groups=8, size=4)
    exact = learner(tiny).step(shard_of(given))
    half = learner(tiny, dtype="bfloat16")
    metrics = half.step(shard_of(given))
    assert metrics["loss"] == pytest.approx(exact["loss"], rel=0.03)
    assert metrics["grad_norm"] == pytest.approx(exact["grad_norm"], rel=0.03)
    assert {w.dtype for w in weights(half).values()} == {torch.float32}
    assert {w.dtype for w in half.snapshot().values()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("name", "dtype", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", torch.bfloat16, 989e12),
        ("NVIDIA H100 80GB HBM3", torch.float16, 989e12),
        ("NVIDIA H100 80GB HBM3", torch.float32, None),
        ("NVIDIA H100 PCIe", torch.bfloat16, 756e12),
        ("NVIDIA GB200", torch.bfloat16, 2500e12),
        ("NVIDIA L4", torch.bfloat16, None),
    ],
)
def test_mfu_is_of_the_dense_peak_of_both_half_precisions_where_it_is_known(
    name: str, dtype: torch.dtype, peak: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    assert peak_flops(torch.device("cuda"), dtype) == peak


def test_the_learning_rate_ramps_linearly(tiny: Path) -> None:
    trained = learner(tiny, learning_rate=0.1, ramp_steps=40)  # at version 4 there have been 8 updates
    assert trained.step(shard_of(batch(4, groups=4, size=4)))["learning_rate"] == pytest.approx(0.025)


def poisoned(version: int, groups: int = 1, value: float = np.nan) -> Batch:
    """One trajectory of the first `groups` has no usable logprob."""
    given = batch(version, groups=4, size=4)
    for group in given.groups[:groups]:
        bad = next(t for t in group.trajectories if any(o.reward != t.reward for o in group.trajectories))
        bad.behavior_logprobs[bad.loss_mask] = value
    return given


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_an_update_that_is_not_finite_leaves_weights_moments_and_means_alone(tiny: Path, value: float) -> None:
    """The first of two minibatches is poisoned; the second trains as if it had been alone."""
    trained, clean = learner(tiny, PPO()), learner(tiny, PPO())
    shard = shard_of(poisoned(4, value=value))
    metrics = trained.step(shard)
    assert metrics["train/skipped_updates"] == 1
    assert all(np.isfinite(value) for value in metrics.values() if not isinstance(value, list))
    clean._updates += 1
    alone = clean.step(Shard(4, shard.minibatches[1:]))
    assert metrics["loss"] == pytest.approx(alone["loss"], rel=1e-6)
    assert metrics["entropy"] == pytest.approx(alone["entropy"], rel=1e-6)
    assert_same_weights(weights(trained), weights(clean), 0.0)


def test_three_updates_in_a_row_that_are_not_finite_end_the_run_with_the_shard_saved(
    tiny: Path, tmp_path: Path
) -> None:
    trained = Learner(
        tiny,
        Train(dtype="float32", learning_rate=1.5e-4, minibatches=2),
        DecoupledPPO(),
        version=4,
        evidence=tmp_path / "logs",
    )
    before = weights(trained)
    assert trained.step(shard_of(poisoned(4, groups=4)))["train/skipped_updates"] == 2
    with pytest.raises(TrainerError, match=r"the loss is nan .* version 5, and 3 updates in a row") as raised:
        trained.step(shard_of(poisoned(5, groups=4)))
    (file,) = (tmp_path / "logs").iterdir()
    assert str(file) in str(raised.value)
    saved = msgpack_arrays.decoder(Shard).decode(file.read_bytes())
    assert np.isnan(saved.minibatches[0].micro_batches[0].behavior_logprobs).any()
    assert_same_weights(before, weights(trained), 0.0)


def test_a_checkpoint_before_any_update_has_moments_of_zero(tiny: Path, tmp_path: Path) -> None:
    trained = learner(tiny)
    assert trained.step(shard_of(poisoned(4, groups=4)))["train/skipped_updates"] == 2
    trained.sharded.write(trained.sharded.training_state(), tmp_path / "saved", tokenizer_path=tiny)
    resumed = Learner(
        tmp_path / "saved",
        Train(dtype="float32", learning_rate=1.5e-4, minibatches=2),
        DecoupledPPO(),
        version=5,
        resumed=True,
    )
    for going_on in (trained, resumed):
        assert going_on.step(shard_of(batch(5, groups=4, size=4)))["train/skipped_updates"] == 0
    assert_same_weights(weights(trained), weights(resumed), 0.0)


def test_a_finite_update_between_others_lets_the_run_go_on(tiny: Path) -> None:
    trained = learner(tiny)
    skipped = [trained.step(shard_of(poisoned(v)))["train/skipped_updates"] for v in range(4, 9)]
    assert skipped == [1] * 5


def test_a_gradient_that_is_not_finite_is_skipped_although_its_loss_is(tiny: Path) -> None:
    trained = learner(tiny, minibatches=1)
    hook = trained.sharded.model.model.norm.register_full_backward_hook(lambda _, grads, __: (grads[0] * np.inf,))
    before = weights(trained)
    metrics = trained.step(shard_of(batch(4, groups=4, size=4), minibatches=1))
    hook.remove()
    assert metrics["train/skipped_updates"] == 1
    assert "loss" not in metrics
    assert_same_weights(before, weights(trained), 0.0)


def test_flops_and_memory_of_a_step_are_logged_and_an_unknown_peak_gives_no_mfu(tiny: Path) -> None:
    metrics = learner(tiny).step(shard_of(batch(4, groups=4, size=4)))
    assert number(metrics, "hardware/tflops") > 0
    assert 0.05 < number(metrics, "hardware/memory_gb") < 100
    assert "hardware/mfu" not in metrics


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


def test_the_mfu_is_of_the_peak_that_a_known_device_promises(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_module, "peak_flops", lambda *_: 2e12)
    metrics = learner(tiny).step(shard_of(batch(4, groups=4, size=4)))
    assert metrics["hardware/mfu"] == pytest.approx(number(metrics, "hardware/tflops") / 2)


def test_compiled_and_checkpointed_blocks_train_as_others_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tiny_model(TinyModel(hidden_size=8, layers=1, heads=1), running_checksum.CHARACTERS, 1, tmp_path)
    shard, plain = shard_of(batch(4, groups=1, size=4), minibatches=1), learner(tmp_path, minibatches=1)
    # The compiler's own back end takes a minute, and is not what is tested.
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    compiled = learner(tmp_path, minibatches=1, compile=True, checkpointing="full")
    assert plain.step(shard)["loss"] == pytest.approx(compiled.step(shard)["loss"], rel=1e-5)
    assert_same_weights(weights(plain), weights(compiled), 1e-5)


def test_a_publication_loads_as_the_weights_it_was_made_of(tmp_path: Path, tiny: Path) -> None:
    trained = learner(tiny)
    update = FileTarget(tmp_path, trained.config_json()).write(5, trained.snapshot())
    again = Learner(update.path, Train(dtype="float32", learning_rate=1.5e-4, minibatches=2), DecoupledPPO())
    assert_same_weights(weights(trained), weights(again), 0.0)


def test_a_publisher_of_every_version_lets_one_snapshot_stand_in_line(tmp_path: Path, tiny: Path) -> None:
    trained, announced = learner(tiny), list[int]()
    first, busy, in_line = threading.Event(), threading.Event(), threading.Event()

    def announce(outcome: WeightUpdate | Exception) -> None:
        assert isinstance(outcome, WeightUpdate)
        announced.append(outcome.version)
        first.set()
        busy.wait(300)

    publisher = Publisher(FileTarget(tmp_path, trained.config_json()), kept=3, announce=announce, every_version=True)

    def publish_two_more() -> None:
        publisher.publish(6, trained.snapshot())
        in_line.set()
        publisher.publish(7, trained.snapshot())

    publisher.publish(5, trained.snapshot())
    assert first.wait(300)
    trainer = threading.Thread(target=publish_two_more)
    trainer.start()
    assert in_line.wait(300)
    trainer.join(0.2)
    assert trainer.is_alive()  # waits for 6 to leave the line
    busy.set()
    trainer.join(300)
    publisher.close(300)
    assert announced == [5, 6, 7]
    assert {path.name for path in tmp_path.iterdir()} == {"v5", "v6", "v7"}


def test_the_publisher_skips_what_a_newer_version_overtook_and_keeps_the_last_few(tmp_path: Path, tiny: Path) -> None:
    trained, announced = learner(tiny), list[int]()
    first, busy = threading.Event(), threading.Event()

    def announce(outcome: WeightUpdate | Exception) -> None:
        assert isinstance(outcome, WeightUpdate)
        announced.append(outcome.version)
        first.set()
        assert (Path(outcome.path) / "model.safetensors").exists()
        busy.wait(300)

    publisher = Publisher(FileTarget(tmp_path, trained.config_json()), kept=2, announce=announce)
    publisher.publish(5, trained.snapshot())
    assert first.wait(300)
    for version in (6, 7, 8):
        publisher.publish(version, trained.snapshot())
    busy.set()
    publisher.publish(9, trained.snapshot())
    publisher.close(300)
    assert announced[0] == 5
    assert announced[-1] == 9
    assert 6 not in announced
    assert len(list(tmp_path.iterdir())) <= 2


def test_a_batch_in_which_every_episode_is_masked_takes_a_step_and_leaves_the_weights(tiny: Path) -> None:
    given = batch(groups=4)
    groups = []
    for group in given.groups:
        masked = [msgspec.structs.replace(t, loss_mask=np.zeros_like(t.loss_mask)) for t in group.trajectories]
        groups.append(msgspec.structs.replace(group, trajectories=tuple(masked)))
    trained = learner(tiny, weight_decay=0.0)
    before = {name: tensor.clone() for name, tensor in weights(trained).items()}
    (shard,), packing = packed(Batch(given.version, tuple(groups)), minibatches=2)
    metrics = trained.step(shard)
    assert packing["tokens/trained"] == 0
    assert metrics["loss"] == 0
    assert metrics["grad_norm"] == 0
    assert_same_weights(before, weights(trained), tolerance=0.0)


def test_a_masked_episode_counts_in_the_advantages_of_the_others() -> None:
    """Its reward is in its group's mean; its own tokens are in no loss."""
    given = batch(groups=1)
    (group,) = given.groups
    first, *rest = group.trajectories
    masked = msgspec.structs.replace(first, loss_mask=np.zeros_like(first.loss_mask))
    both = [group, msgspec.structs.replace(group, trajectories=(masked, *rest))]
    (plain,), (with_mask,) = (loss_sequences(Batch(given.version, (g,)), GRPO()) for g in both)
    assert len(with_mask[0].advantages) == 0
    for a, b in zip(plain[1:], with_mask[1:], strict=True):
        np.testing.assert_array_equal(a.advantages, b.advantages)
