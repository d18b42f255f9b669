"""Every family is filled from safetensors, sharded and scored as transformers would; others are refused by name."""

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
)

from arl.config.recipe import Train
from arl.errors import DataError, InputError
from arl.models.export import export_model
from arl.models.load import empty_model
from arl.models.weights import fill_model
from arl.train.algorithms.ppo import PPO
from arl.train.learner import Learner
from arl.train.micro_batch import pack_groups
from arl.train.packing import LossSequence, Minibatch
from arl.train.sharded_model import ShardedModel
from arl.train.sharding import init_ranks
from tests.examples import examples
from tests.train.columns import loss_sequence
from tests.train.families import FAMILIES, make_family
from tests.train.one_rank import gradient_of

pytestmark = pytest.mark.usefixtures("alone")

TOLERANCE = 1e-5  # of the gradient's norm, in float32
LOSS_TOKENS, LOSS_SEQUENCES = 77, 11  # of the minibatch, before anything was left out


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: make_family(name, tmp_path_factory.mktemp(name)) for name in FAMILIES}


@pytest.fixture(scope="module")
def learners(models: dict[str, Path]) -> dict[str, Learner]:
    return {
        name: Learner(path, Train(dtype="float32", learning_rate=1.5e-4, minibatches=1), PPO())
        for name, path in models.items()
    }


def sequences(seed: int) -> list[list[LossSequence]]:
    """Groups that share a prompt, with tokens outside the loss, ties, and behavior logprobs of another policy."""
    rng = random.Random(seed)
    groups = []
    for _ in range(rng.randint(1, 4)):
        prompt = [rng.randrange(14) for _ in range(rng.randint(1, 12))]
        groups.append([_sequence(prompt, rng) for _ in range(rng.randint(1, 4))])
    return groups


def _sequence(prompt: list[int], rng: random.Random) -> LossSequence:
    tokens = np.array(prompt + [rng.randrange(3) for _ in range(rng.randint(1, 18))], np.int32)
    after = range(len(prompt), len(tokens))
    at = np.array(sorted(rng.sample(after, max(1, len(after) - 2))))
    behavior = np.array([-rng.uniform(1, 4) for _ in at], np.float32)
    advantages = np.full(len(at), rng.choice([-1.5, 0.25, 1.0]), np.float32)
    return loss_sequence(tokens, at, advantages, behavior)


@pytest.mark.parametrize("name", FAMILIES)
@settings(examples(0.2), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 16), capacity=st.integers(30, 200))
def test_loss_and_gradient_of_any_packing_are_those_of_the_unpacked_sequences(
    name: str, learners: dict[str, Learner], models: dict[str, Path], seed: int, capacity: int
) -> None:
    groups = sequences(seed)
    packs = pack_groups(groups, capacity, ranks=1)[0]
    loss, gradient = gradient_of(learners[name], Minibatch(packs, LOSS_TOKENS, LOSS_SEQUENCES))
    expected_loss, expected = _unpacked(models[name], groups)
    norm = torch.stack([g.norm() for g in expected.values()]).norm()
    assume(not 0 < norm < 5e-3)  # where sequences all but cancel, what is left is as large as their rounding
    difference = torch.stack([(gradient[key] - g).norm() for key, g in expected.items()]).norm()
    assert gradient.keys() == expected.keys()
    assert abs(loss - expected_loss) < TOLERANCE * max(1, abs(expected_loss))
    assert difference <= TOLERANCE * norm  # both are 0 where every token is clipped


def _naive_ppo(log_ratio: torch.Tensor, advantage: float) -> torch.Tensor:
    ratio = log_ratio.exp()
    edge = 1.2 if advantage > 0 else 0.8
    assume(bool(((ratio - edge).abs() > 1e-4).all()))  # so near it, rounding decides whether a token has a gradient
    return -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).sum() / LOSS_TOKENS


def _unpacked(path: Path, groups: list[list[LossSequence]]) -> tuple[float, dict[str, torch.Tensor]]:
    """A loss written out, by transformers' own attention and logits, one sequence at a time."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa").eval()
    total = torch.zeros(())
    for s in (s for group in groups for s in group):
        tokens, at = torch.from_numpy(s.token_ids).long(), torch.from_numpy(s.loss_at)
        logprobs = model(input_ids=tokens[None], use_cache=False).logits[0].log_softmax(-1)[at - 1, tokens[at]]
        log_ratio = logprobs - torch.from_numpy(s.columns["behavior_logprobs"])
        total = total + _naive_ppo(log_ratio, float(s.columns["advantages"][0]))
    total.backward()  # type: ignore[no-untyped-call]
    return total.item(), {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_filled_from_several_files_is_the_one_that_transformers_loads(
    name: str, models: dict[str, Path], tmp_path: Path
) -> None:
    path = make_family(name, tmp_path / "cut", max_shard_size="8KB")
    assert len(list(path.glob("*.safetensors"))) > 2
    ours = empty_model(path)
    fill_model(ours, path, torch.device("cpu"))
    theirs = AutoModelForCausalLM.from_pretrained(models[name], dtype=torch.float32)
    for got, expected in ((ours.named_parameters, theirs.named_parameters), (ours.named_buffers, theirs.named_buffers)):
        a, b = dict(got()), dict(expected())
        assert a.keys() == b.keys()
        assert all(torch.equal(a[key], b[key]) for key in a)


DESCRIBED = {  # as older versions of transformers write them, or as nobody would
    "config.json": '{"torch_dtype":  "bfloat16", "rope_theta": 5e5, "rope_scaling": null, %s}',
    "generation_config.json": '{"eos_token_id": [3, 5], "temperature": 0.7, "do_sample": true}',
    "tokenizer_config.json": '{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>",   "é": 1}',
    "special_tokens_map.json": "{}",
    "tokenizer.model": "pieces",
    "chat_template.jinja": "{{ messages }}",
    "additional_chat_templates/tool_use.jinja": "{{ tools }}",
}
OTHERS = ["README.md", ".git/config", "notes.txt", "pytorch_model.bin", "training_args.bin", "trainer_state.json"]


def test_a_model_comes_back_with_the_files_that_describe_it_byte_for_byte(
    models: dict[str, Path], tmp_path: Path
) -> None:
    """Its source is of bfloat16 and in several files; what arl writes is float32, and exported the source again."""
    source = tmp_path / "source"
    model = AutoModelForCausalLM.from_pretrained(models["llama"], dtype=torch.bfloat16)
    model.save_pretrained(source, max_shard_size="8KB")
    shutil.copy(models["llama"] / "tokenizer.json", source)
    known = json.loads((source / "config.json").read_text())
    fields = json.dumps({name: known[name] for name in known.keys() - {"dtype", "rope_parameters"}})[1:-1]
    for name in (*DESCRIBED, *OTHERS):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(DESCRIBED.get(name, "private").replace("%s", fields))
    described = {name: (source / name).read_text() for name in (*DESCRIBED, "tokenizer.json")}
    described_float32 = described | {"config.json": described["config.json"].replace("bfloat16", "float32")}

    sharded = ShardedModel(source, Train(dtype="float32"), 1.0, init_ranks(60))
    sharded.save(tmp_path / "saved")
    of_saved = ShardedModel(tmp_path / "saved", Train(dtype="float32"), 1.0, init_ranks(60))  # a second run
    of_saved.write(of_saved.training_state(), tmp_path / "again")
    exported, dtype = export_model(tmp_path / "again", None, None)

    assert (exported, dtype) == (tmp_path / "again-bfloat16", "bfloat16")
    resumes = {"model.safetensors", "optimizer.safetensors", "arl_source.json"}
    assert contents_but(resumes, tmp_path / "saved") == described_float32
    assert contents_but(resumes, tmp_path / "again") == described_float32
    assert contents_but({"model.safetensors"}, exported) == described
    whole = load_file(exported / "model.safetensors")
    for file in source.glob("*.safetensors"):
        for name, tensor in load_file(file).items():
            assert torch.equal(tensor, whole.pop(name)), name
    assert not whole
    with pytest.raises(InputError, match="exists already"):
        export_model(tmp_path / "again", None, None)


def contents_but(left_out: set[str], directory: Path) -> dict[str, str]:
    files = (file for file in directory.rglob("*") if file.is_file() and file.name not in left_out)
    return {file.relative_to(directory).as_posix(): file.read_text() for file in files}


@pytest.mark.parametrize(
    ("config", "rule"),
    [
        (Gemma2Config(architectures=["Gemma2ForCausalLM"]), "attn_logit_softcapping 50.0 .gemma2."),
        (LlamaConfig(architectures=["LlamaForCausalLM"], final_logit_softcapping=30.0), "final_logit_softcapping 30"),
        (MistralConfig(architectures=["MistralForCausalLM"], sliding_window=4096), "sliding-window attention"),
        (GPT2Config(architectures=["GPT2LMHeadModel"]), "GPT2LMHeadModel.* is not supported; choose one of Gemma"),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_an_architecture_that_would_be_computed_wrongly_is_refused_by_name(
    config: AutoConfig, rule: str, tmp_path: Path
) -> None:
    config.save_pretrained(tmp_path)
    with pytest.raises(DataError, match=rule):
        empty_model(tmp_path)
