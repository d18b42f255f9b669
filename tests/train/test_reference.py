"""The divergence from a reference, in fp64 against its definition; what it costs, and what is not loaded."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor

from arl.config.objective_section import REFERENCE, ObjectiveSection
from arl.config.recipe import Recipe
from arl.errors import DataError
from arl.run.preflight import preflight
from arl.train.algorithms.decoupled_ppo import DecoupledPPO
from arl.train.algorithms.objective import Objective
from arl.train.learner import Learner
from tests.train import world
from tests.train.columns import comparable, token_columns
from tests.train.one_rank import learner, shard_of
from tests.train.synthetic import batch
from tests.train.workers import run_world

BETA = 0.25


def objective(path: Path | str = "base", **reference: Any) -> Objective:
    section = {"path": str(path), "coefficient": BETA} | reference
    made = ObjectiveSection.model_validate({"kind": "decoupled_ppo", "reference": section})
    assert isinstance(made, Objective)
    return made


@pytest.mark.parametrize("kl", ["k1", "k2", "k3", "unbiased"])
def test_the_term_and_its_gradient_are_those_of_the_definition(kl: str) -> None:
    current = torch.tensor([-1.0, -2.0, -0.5, -30.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([-1.5, -0.7, -0.5, -1.0], dtype=torch.float64)
    behavior = torch.tensor([-1.2, -2.5, -0.4, -30.0], dtype=torch.float64)
    tokens = token_columns(current, behavior, torch.zeros_like(behavior), proximal=behavior, reference=reference)
    loss, values = objective(kl=kl).total(tokens)
    (gradient,) = torch.autograd.grad(loss.sum(), current)
    x = current.detach()[:3]
    d = reference[:3] - x
    w = (x - behavior[:3]).exp()
    k3 = d.exp() - 1 - d
    expected, slope = {
        "k1": (-d, torch.ones_like(d)),
        "k2": (d**2 / 2, -d),
        "k3": (k3, 1 - d.exp()),
        "unbiased": (w * k3, w * (k3 + 1 - d.exp())),
    }[kl]
    torch.testing.assert_close(loss[:3], BETA * expected)
    torch.testing.assert_close(gradient[:3], BETA * slope)
    torch.testing.assert_close(values["kl_reference"][:3], k3)
    assert loss.isfinite().all()  # log r = 29 counts as 20
    assert gradient.isfinite().all()


def test_the_unbiased_term_has_the_gradient_of_the_divergence_whoever_sampled() -> None:
    logits = torch.tensor([0.3, -1.0, 0.8], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64).log()
    sampler = torch.tensor([0.1, 0.6, 0.3], dtype=torch.float64)
    current = logits.log_softmax(0)
    (expected,) = torch.autograd.grad((current.exp() * (current - reference)).sum(), logits, retain_graph=True)
    made = objective(kl="unbiased")
    zeros = torch.zeros(3, dtype=torch.float64)
    tokens = token_columns(current, sampler.log(), zeros, proximal=sampler.log(), reference=reference)
    loss, _ = made.total(tokens)
    (found,) = torch.autograd.grad((sampler * loss).sum() / BETA, logits)
    torch.testing.assert_close(found, expected)


def other_model(tiny: Path, directory: Path) -> Path:
    """The same model with other weights."""
    shutil.copytree(tiny, directory)
    from safetensors.torch import save_file

    weights = load_file(tiny / "model.safetensors")
    changed = {name: weight * 1.1 for name, weight in weights.items()}
    save_file(changed, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def count_forwards(model: Any) -> list[int]:
    calls: list[int] = []
    model.model.register_forward_hook(lambda *_: calls.append(1))
    return calls


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("place", ["loss", "reward"])
def test_a_step_with_a_reference_costs_one_forward_of_it_and_nothing_else(
    tiny: Path, tmp_path: Path, place: str
) -> None:
    made = objective(other_model(tiny, tmp_path / "other"), place=place)
    assert not made.leaves_out_zeros  # they have a gradient now
    shard = shard_of(batch(4, groups=8, size=4), 2, capacity=200)
    plain, penalized = learner(tiny), learner(tiny, made)
    calls = [count_forwards(model) for model in (plain.policy.model, penalized.policy.model)]
    calls.append(count_forwards(penalized.beside.frozen[REFERENCE].model))
    before = plain.step(shard)
    after = penalized.step(shard)
    packs = [pack for minibatch in shard.minibatches for pack in minibatch.micro_batches]
    assert [len(made) for made in calls] == [len(calls[0]), len(calls[0]), len(packs)]
    assert after["kl/reference"] > 0  # type: ignore[operator]
    assert after["loss"] != before["loss"]


@pytest.mark.usefixtures("alone")
def test_with_coefficient_0_nothing_is_loaded(tiny: Path) -> None:
    trained = learner(tiny, objective("/nowhere", coefficient=0))
    assert trained.beside.frozen == {}
    assert trained.objective.leaves_out_zeros


def other_ids(tiny: Path, directory: Path) -> Path:
    """The same model, whose tokenizer has two tokens in each other's place."""
    shutil.copytree(tiny, directory)
    file = directory / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    ids = tokenizer["model"]["vocab"]
    ids["1"], ids["2"] = ids["2"], ids["1"]
    file.write_text(json.dumps(tokenizer))
    return directory


def test_a_reference_whose_ids_differ_is_refused_though_it_has_as_many(tiny: Path, tmp_path: Path) -> None:
    other = other_ids(tiny, tmp_path / "other")
    sections: dict[str, Any] = {
        "model": {"path": str(tiny)},
        "data": {"task": "running_checksum"},
        "rollout": {"max_new_tokens": 64},
        "output": {"directory": str(tmp_path / "runs")},
    }

    def planned(path: Path) -> object:
        reference = {"path": str(path), "coefficient": BETA}
        return preflight(Recipe.model_validate(sections | {"objective": {"reference": reference}}))

    with pytest.raises(DataError, match=rf"objective\.reference\.path {other}: .* 2 of \d+ tokens have another id"):
        planned(other)
    with pytest.raises(DataError, match=r"objective\.reference\.path /nowhere: there is no directory"):
        planned(Path("/nowhere"))
    planned(tiny)


def test_ranks_change_neither_the_average_nor_what_the_sampling_versions_say(tiny: Path, tmp_path: Path) -> None:
    settings = {"proximal": "sampled", "reference": {"path": "average", "decay": 0.5, "coefficient": BETA}}
    train = {"ratio_parts_every": 1, "halves_every": 0, "capacity": 500}
    metrics, weights = world.trained(str(tiny), train, settings)
    dist.destroy_process_group()
    directory = str(tmp_path / "two")
    case = {"model": str(tiny), "train": train | {"ranks": 2}, "directory": directory, "objective": settings}
    run_world([("train", case)], 2, tmp_path)
    told = json.loads(Path(directory, "metrics.json").read_text())
    parts = [name for name in metrics[-1] if name.startswith(("by_age/log_", "by_age/k3_", "by_age/kl_ref"))]
    assert len(parts) == 7
    for ours, theirs in zip(metrics, told, strict=True):
        for name in [*parts, "loss", "kl/reference"]:
            assert comparable(theirs[name]) == pytest.approx(comparable(ours[name]), rel=1e-4, abs=1e-6), name
    found = load_file(Path(directory, "weights"))
    for name, weight in weights.items():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=1e-5, msg=name)


def shards(held: Learner, kind: str) -> dict[str, Tensor]:
    return held.policy.beside[kind]


@pytest.mark.usefixtures("alone")
def test_the_average_follows_each_step_and_goes_on_from_a_checkpoint(tiny: Path, tmp_path: Path) -> None:
    made = objective("average", decay=0.75)
    held = learner(tiny, made)
    before = {name: weight.clone() for name, weight in shards(held, "average").items()}
    held.step(shard_of(batch(4, groups=8, size=4), 2))
    for name, weight in held.policy.in_host_memory(torch.float32).items():
        torch.testing.assert_close(shards(held, "average")[name], 0.75 * before[name] + 0.25 * weight, msg=name)
    held.policy.write(held.policy.training_state(), tmp_path / "saved")
    train = {"minibatches": 2, "dtype": "float32", "learning_rate": 1.5e-4}
    resumed = Learner(tmp_path / "saved", learner_section(train), made, version=5, resumed=True)
    for name, weight in shards(held, "average").items():
        assert torch.equal(shards(resumed, "average")[name], weight), name
        assert torch.equal(resumed.beside.frozen[REFERENCE].in_host_memory(torch.float32)[name], weight), name


def learner_section(train: dict[str, Any]) -> Any:
    from arl.config.recipe import Train

    return Train.model_validate(train)


def test_settings_that_mean_nothing_are_refused() -> None:
    for reference, why in (
        ({"path": "average"}, "decay None: is of a moving average"),
        ({"decay": 0.5}, "decay 0.5: is of a moving average"),
        ({"place": "reward", "kl": "unbiased"}, "the estimate has none"),
    ):
        with pytest.raises(ValueError, match=why):
            objective(**reference)
    with pytest.raises(ValueError, match="takes one advantage for a whole trajectory"):
        ObjectiveSection.model_validate(
            {"kind": "gspo", "clip_low": 1e-3, "clip_high": 1e-3, "reference": {"coefficient": 1, "place": "reward"}}
        )

    class Asks(DecoupledPPO):
        """Reads a reference, and has none."""

        columns = (REFERENCE,)

    with pytest.raises(ValueError, match=r"objective\.reference of which model"):
        Asks().validate_settings()
