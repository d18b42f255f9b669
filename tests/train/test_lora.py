"""LoRA trains what PEFT trains, on any number of ranks, and hands it on as PEFT and transformers read it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from arl.config.train_section import Lora, Train
from arl.engine.embedded.scoring import score_tokens
from arl.errors import DataError, InputError
from arl.models.load import empty_model, load_model
from arl.models.lora import export_adapter, inject, load_adapted
from arl.sync.loading import load_state
from arl.train.algorithms.decoupled_ppo import DecoupledPPO
from arl.train.learner import Learner
from arl.train.micro_batch import pack_groups
from arl.train.placed_batch import place_batch
from arl.types import ScoreRequest
from tests.train import world
from tests.train.families import make_family
from tests.train.one_rank import learner, rewarded, shard_of, weights
from tests.train.synthetic import batch
from tests.train.workers import run_world

LORA = {"rank": 3, "alpha": 6}  # 3 rows do not divide among 2 or 4 ranks
SETTINGS = {"lora": LORA, "learning_rate": 1e-2, "minibatches": 2, "dtype": "float32"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_family("qwen2-tied", tmp_path_factory.mktemp("model"))


def test_adapters_and_their_gradient_are_those_of_peft(model: Path) -> None:
    sequences = rewarded(batch(4, groups=2, size=4, seed=0))
    held = learner(model, lora=LORA).policy
    dense = AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager")
    peft = get_peft_model(dense, LoraConfig(r=3, lora_alpha=6, target_modules="all-linear"))
    theirs = {n.removeprefix("base_model.model."): p for n, p in peft.named_parameters() if p.requires_grad}
    assert theirs.keys() == held._trained.keys()
    assert all(not local.any() for name, local in held._trained.items() if "lora_B" in name)
    torch.manual_seed(0)
    for name, local in held._trained.items():
        if "lora_B" in name:
            local.detach().normal_(std=0.1)
        else:  # both are uniform within 1 / sqrt(inputs)
            assert abs(local.abs().max() / theirs[name].abs().max() - 1) < 0.1, name
        theirs[name].data.copy_(local.detach())

    ((pack,),) = pack_groups([sequences], 16_384, ranks=1)
    logprob, _ = held.score(place_batch(pack, held.device))
    held.backward(-logprob[torch.from_numpy(pack.loss_scores).long()].sum(), last=True)
    ours = dict(zip(held._trained, held.take_gradient(), strict=True))

    loss = torch.zeros(())
    for sequence in sequences:
        ids = torch.tensor(sequence.token_ids)[None].long()
        scores = peft(ids).logits.log_softmax(-1)[0, :-1].gather(-1, ids[0, 1:, None])[:, 0]
        loss = loss - scores[torch.as_tensor(sequence.loss_at).long() - 1].sum()
    loss.backward()  # type: ignore[no-untyped-call]
    for name, parameter in theirs.items():
        assert parameter.grad is not None
        close = 1e-5 * float(parameter.grad.abs().max())
        torch.testing.assert_close(ours[name], parameter.grad, rtol=1e-5, atol=close, msg=name)


def test_a_checkpoint_is_the_merged_model_and_resumes_to_the_same_bits(model: Path, tmp_path: Path) -> None:
    first, second = (shard_of(batch(version, groups=4, size=4, seed=version)) for version in (4, 5))
    section = Train.model_validate(SETTINGS)
    trained = Learner(model, section, DecoupledPPO(), version=4)
    trained.step(first)
    trained.policy.write(trained.policy.training_state(), tmp_path / "saved")
    resumed = Learner(tmp_path / "saved", section, DecoupledPPO(), version=5, resumed=True)
    for one in (trained, resumed):
        one.step(second)
    after = weights(resumed)
    assert all(torch.equal(weight, after[name]) for name, weight in weights(trained).items())

    export_adapter(tmp_path / "saved", tmp_path / "adapter")
    base = AutoModelForCausalLM.from_pretrained(model)
    found = PeftModel.from_pretrained(base, tmp_path / "adapter")
    ids = torch.arange(3, 17)[None]
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    torch.testing.assert_close(found(ids).logits, saved(ids).logits, rtol=1e-4, atol=1e-4)
    merged = found.merge_and_unload().state_dict()
    untouched = load_file(model / "model.safetensors")
    ours = load_file(tmp_path / "saved" / "model.safetensors")
    for name, weight in ours.items():
        torch.testing.assert_close(weight, merged[name], rtol=0, atol=1e-6, msg=name)
        assert torch.equal(weight, untouched[name]) != name.endswith("proj.weight"), name
    with pytest.raises(InputError, match="exists already"):
        export_adapter(tmp_path / "saved", tmp_path / "adapter")
    with pytest.raises(DataError, match="trained all weights"):
        export_adapter(model, tmp_path / "other")


WORLDS: dict[int, list[dict[str, Any]]] = {
    2: [{"reshard": True, "checkpointing": "full"}],
    4: [{}, {"shard_ranks": 2}],
}


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_any_number_of_ranks_trains_the_same_adapters(ranks: int, model: Path, tmp_path: Path) -> None:
    lora = {"lora": LORA, "learning_rate": 1e-3}
    cases: list[tuple[str, dict[str, Any]]] = []
    for number, held in enumerate(WORLDS[ranks]):
        train = {"ranks": ranks, **lora, **held}
        cases.append(("train", {"model": str(model), "train": train, "directory": str(tmp_path / str(number))}))
    run_world(cases, ranks, tmp_path)
    metrics, alone = world.trained(str(model), lora)
    for number in range(len(cases)):
        told = json.loads((tmp_path / str(number) / "metrics.json").read_text())
        assert [t["loss"] for t in told] == pytest.approx([m["loss"] for m in metrics], rel=1e-4)
        for name, weight in load_file(tmp_path / str(number) / "weights").items():
            torch.testing.assert_close(weight, alone[name], rtol=0, atol=1e-5, msg=name)


def test_a_target_that_no_layer_has_is_refused_by_name(model: Path) -> None:
    for target in ("query", "lm_head", "embed_tokens"):
        with pytest.raises(InputError, match=f"targets {target}: .*q_proj"):
            inject(empty_model(model), Lora(targets=(target,)))


def test_an_engine_that_is_given_adapters_alone_computes_as_the_merged_model(model: Path, tmp_path: Path) -> None:
    trained = Learner(model, Train.model_validate(SETTINGS), DecoupledPPO(), version=4, publishes_adapters=True)
    trained.step(shard_of(batch(4, groups=4, size=4)))
    published = trained.snapshot()
    assert {name.rpartition(".lora_")[2] for name in published} == {"A.default.weight", "B.default.weight"}
    assert [spec.name for spec in trained.tensors()] == list(published)
    trained.policy.save(tmp_path / "merged")
    save_file(published, tmp_path / "model.safetensors")
    engine = load_adapted(model, tmp_path, Lora.model_validate(LORA), "float32")
    before = load_adapted(model, model, Lora.model_validate(LORA), "float32")
    targets = (3, 4, 5, 6, 7, 8, 9)
    said, base, merged = (
        score_tokens(one, [ScoreRequest("", targets, 1)])[0].logprobs
        for one in (engine, before, load_model(tmp_path / "merged", "float32"))
    )
    np.testing.assert_allclose(said, merged, atol=1e-5)
    assert np.abs(said - base).max() > 1e-3
    load_state(before, published, "version 5")
    assert np.array_equal(score_tokens(before, [ScoreRequest("", targets, 1)])[0].logprobs, said)
