"""A teacher's divergences in fp64 against their definitions, and a learner that has nothing else to learn from."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from arl.config.objective_section import ObjectiveSection
from arl.config.recipe import Recipe
from arl.config.teacher_section import TEACHER
from arl.errors import DataError, InputError
from arl.run.preflight import preflight
from arl.train.algorithms.distillation import NO_TOKEN, divergence
from arl.train.algorithms.objective import Objective
from tests.train.columns import token_columns
from tests.train.one_rank import learner, shard_of
from tests.train.synthetic import batch
from tests.train.test_reference import count_forwards, other_ids, other_model

BETA = 0.25
FP64 = torch.float64


def objective(path: Path | str = "/teacher", kind: str = "decoupled_ppo", **teacher: Any) -> Objective:
    section = {"path": str(path), "coefficient": BETA} | teacher
    clips = {"clip_low": 1e-3, "clip_high": 1e-3} if kind == "gspo" else {}
    made = ObjectiveSection.model_validate({"kind": kind, "teacher": section, **clips})
    assert isinstance(made, Objective)
    return made


@pytest.mark.parametrize("kind", ["decoupled_ppo", "ppo"])
def test_the_sampled_tokens_have_the_gradient_of_the_reverse_divergence_whoever_sampled(kind: str) -> None:
    logits = torch.tensor([0.3, -1.0, 0.8], dtype=FP64, requires_grad=True)
    teacher = torch.tensor([0.5, 0.2, 0.3], dtype=FP64).log()
    current = logits.log_softmax(0)
    sampler = (current.detach() * 0.9).log_softmax(0)  # an older policy, so near that nothing is clipped
    (expected,) = torch.autograd.grad((current.exp() * (current - teacher)).sum(), logits, retain_graph=True)
    for alone in (True, False):
        given = torch.tensor([1.0, -2.0, 0.5], dtype=FP64) * (not alone)  # as the packer gives them
        tokens = token_columns(current, sampler, given, proximal=current.detach(), teacher=teacher)
        loss, values = objective(kind=kind, alone=alone).total(tokens)
        (found,) = torch.autograd.grad((sampler.exp() * loss).sum(), logits, retain_graph=True)
        rewarded = torch.zeros(3, dtype=FP64)
        if not alone:
            (rewarded,) = torch.autograd.grad(-(current.exp() * given).sum(), logits, retain_graph=True)
        torch.testing.assert_close(found, BETA * expected + rewarded)
        log_ratio = (teacher - current).detach()
        torch.testing.assert_close(values["kl_teacher"], log_ratio.exp() - 1 - log_ratio)


@pytest.mark.parametrize("kind", ["decoupled_ppo", "gspo"])
@pytest.mark.parametrize("kl", ["reverse", "forward"])
def test_over_the_top_k_it_is_the_divergence_with_all_other_tokens_as_one(kl: str, kind: str) -> None:
    torch.manual_seed(0)
    logits = torch.randn(4, 6, dtype=FP64, requires_grad=True)
    teacher = torch.randn(4, 6, dtype=FP64).log_softmax(-1)
    current = logits.log_softmax(-1)

    def divergences(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return (p * (p.log() - q.log())).sum(-1)

    def coarse(logprobs: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        chosen = logprobs.exp().gather(1, ids)
        return torch.cat([chosen, 1 - chosen.sum(-1, keepdim=True)], -1)

    previous = torch.zeros(4, dtype=FP64)
    for k in (1, 3, 5):
        top, ids = teacher.topk(k)
        events = coarse(current, ids), coarse(teacher, ids)
        expected = divergences(*(events if kl == "reverse" else events[::-1]))
        sampled = current[:, 0]
        tokens = token_columns(
            sampled, sampled.detach(), torch.zeros(4), proximal=sampled.detach(), top=(current.gather(1, ids), top)
        )
        loss, values = objective(kind=kind, kl=kl, top_k=k, alone=True).total(tokens)
        torch.testing.assert_close(values["kl_teacher"], expected.detach())
        wanted = torch.autograd.grad(BETA * expected.sum(), logits, retain_graph=True)
        torch.testing.assert_close(torch.autograd.grad(loss.sum(), logits, retain_graph=True), wanted)
        assert (expected >= previous - 1e-12).all()  # a finer view sees no less
        previous = expected.detach()
    full = divergences(*((current.exp(), teacher.exp()) if kl == "reverse" else (teacher.exp(), current.exp())))
    torch.testing.assert_close(previous, full.detach())  # five of six tokens, and the sixth as the rest


@pytest.mark.parametrize("kl", ["reverse", "forward"])
def test_padding_that_a_teacher_finds_likely_is_no_event(kl: str) -> None:
    current = torch.tensor([[0.5, 0.2, 0.2, 0.1]], dtype=FP64).log().requires_grad_()
    teacher = torch.tensor([[0.3, 0.4, NO_TOKEN]], dtype=FP64)
    teacher[:, :2] = teacher[:, :2].log()
    padded = divergence(kl, current[:, [0, 1, 0]], teacher)
    torch.testing.assert_close(padded, divergence(kl, current[:, :2], teacher[:, :2]))
    (gradient,) = torch.autograd.grad(padded.sum(), current)
    assert gradient.isfinite().all()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("teacher", [{}, {"top_k": 4}, {"top_k": 4, "kl": "forward"}])
def test_a_learner_comes_near_its_teacher_and_pays_one_forward_of_it(
    tiny: Path, tmp_path: Path, teacher: dict[str, Any]
) -> None:
    made = objective(other_model(tiny, tmp_path / "other"), coefficient=1.0, alone=True, **teacher)
    assert not made.leaves_out_zeros
    held = learner(tiny, made, learning_rate=1e-3)
    shard = shard_of(batch(4, groups=8, size=4, max_age=0), 2, capacity=200, objective=made)
    calls = count_forwards(held.beside.frozen[TEACHER].model)
    distances = []
    for version in range(4, 12):
        metrics = held.step(shard_at(shard, version))
        distances.append(metrics["kl/teacher"])
    packs = sum(len(minibatch.micro_batches) for minibatch in shard.minibatches)
    assert len(calls) == 8 * packs
    assert distances[-1] < 0.7 * distances[0], distances  # type: ignore[operator]


def shard_at(shard: Any, version: int) -> Any:
    return type(shard)(version, shard.minibatches)


@pytest.mark.usefixtures("alone")
def test_the_policy_itself_as_a_teacher_has_nothing_to_teach(tiny: Path) -> None:
    for teacher in ({}, {"top_k": 4}, {"top_k": 4, "kl": "forward"}):
        made = objective(tiny, alone=True, **teacher)
        held = learner(tiny, made, minibatches=1)
        metrics = held.step(shard_of(batch(4, groups=4, size=1), 1, objective=made))  # groups of one have no advantage
        assert metrics["kl/teacher"] == pytest.approx(0, abs=1e-6)
        assert metrics["grad_norm"] == pytest.approx(0, abs=1e-5)


def test_a_teacher_of_another_vocabulary_and_settings_that_mean_nothing_are_refused(tiny: Path, tmp_path: Path) -> None:
    other = other_ids(tiny, tmp_path / "other")
    sections: dict[str, Any] = {
        "model": {"path": str(tiny)},
        "data": {"task": "running_checksum"},
        "rollout": {"max_new_tokens": 64},
        "objective": {"teacher": {"path": str(other)}},
        "output": {"directory": str(tmp_path / "runs")},
    }
    with pytest.raises(DataError, match=rf"objective\.teacher\.path {other}: .* 2 of \d+ tokens have another id"):
        preflight(Recipe.model_validate(sections))
    shutil.rmtree(other)
    with pytest.raises(DataError, match=rf"objective\.teacher\.path {other}: there is no directory"):
        preflight(Recipe.model_validate(sections))
    sections["objective"] = {"teacher": {"path": str(tiny), "top_k": 99}}
    with pytest.raises(InputError, match=r"objective\.teacher\.top_k 99: the vocabulary has \d+ tokens"):
        preflight(Recipe.model_validate(sections))
    short = other_model(tiny, tmp_path / "short")
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 16}))
    sections["objective"] = {"teacher": {"path": str(short)}}
    with pytest.raises(InputError, match="its context of 16 tokens is shorter than a trajectory of up to"):
        preflight(Recipe.model_validate(sections))
    with pytest.raises(ValueError, match="kl forward is a mean over what the teacher would say"):
        objective(kl="forward")
    with pytest.raises(ValueError, match="takes one for a whole trajectory; give top_k"):
        objective(kind="gspo")
