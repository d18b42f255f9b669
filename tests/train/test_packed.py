"""The pack computes exactly what each trajectory would compute alone."""

import copy
import random
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedModel,
    Qwen2Config,
)

from arl.models import packed
from arl.models.attention import ATTENTION
from arl.models.packed import PackedContext
from arl.train.loss_sequence import LossSequence
from arl.train.micro_batch import MicroBatch
from arl.train.packer import pack_groups
from tests.train.families import FAMILIES, SHAPE

CONFIGS = {
    **FAMILIES,
    "llama-all-heads": LlamaConfig(**SHAPE | {"num_key_value_heads": 4}),
    "qwen2-one-key-head": Qwen2Config(**SHAPE | {"num_key_value_heads": 1}),
}


def model(name: str, attention: str) -> PreTrainedModel:
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(copy.deepcopy(CONFIGS[name]), attn_implementation=attention).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(std=0.3)
    return made


def group(rng: random.Random, prompt: int, responses: list[int], vocab: int = 16) -> list[LossSequence]:
    shared = [rng.randrange(vocab) for _ in range(prompt)]
    made = []
    for length in responses:
        tokens = np.array(shared + [rng.randrange(vocab) for _ in range(length)], np.int32)
        keep = np.array(sorted(rng.sample(range(prompt, prompt + length), max(1, length - 1))))  # a tool token
        zeros = np.zeros(len(keep), np.float32)
        advantages = np.full(len(keep), rng.uniform(-1, 1), np.float32)
        made.append(LossSequence(tokens, keep, zeros, zeros.astype(np.int32), advantages))
    return made


def packed_loss(m: PreTrainedModel, batch: MicroBatch) -> torch.Tensor:
    context = PackedContext(batch.query_offsets, batch.key_offsets, batch.key_indices)
    logits = m(
        input_ids=torch.from_numpy(batch.token_ids).long()[None],
        position_ids=torch.from_numpy(batch.position_ids).long()[None],
        use_cache=False,
        context=context,
        logits_to_keep=torch.from_numpy(batch.score_positions).long(),
    ).logits[0]
    targets = torch.from_numpy(batch.score_targets).long()
    logprob = logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]
    loss: torch.Tensor = (
        logprob[torch.from_numpy(batch.loss_scores).long()] * torch.from_numpy(batch.advantages)
    ).sum()
    return loss


def loss_alone(m: PreTrainedModel, sequence: LossSequence) -> torch.Tensor:
    tokens = torch.from_numpy(sequence.token_ids).long()
    logprobs = m(input_ids=tokens[None], use_cache=False).logits[0].log_softmax(-1)
    at = torch.from_numpy(sequence.loss_at)
    loss: torch.Tensor = (logprobs[at - 1, tokens[at]] * torch.from_numpy(sequence.advantages)).sum()
    return loss


def gradients(m: PreTrainedModel) -> dict[str, torch.Tensor]:
    found = {name: p.grad.clone() for name, p in m.named_parameters() if p.grad is not None}
    m.zero_grad()
    return found


def assert_packed_equals_alone(name: str, groups: list[list[LossSequence]], capacity: int) -> None:
    ours, theirs = model(name, ATTENTION), model(name, "sdpa")
    (share,) = pack_groups(groups, capacity, ranks=1)
    loss = sum(packed_loss(ours, batch) for batch in share)
    reference = sum(loss_alone(theirs, s) for members in groups for s in members)
    assert isinstance(loss, torch.Tensor)
    assert isinstance(reference, torch.Tensor)
    torch.testing.assert_close(loss, reference, rtol=1e-6, atol=1e-5)
    loss.backward()  # type: ignore[no-untyped-call]
    reference.backward()  # type: ignore[no-untyped-call]
    expected = gradients(theirs)
    for key, gradient in gradients(ours).items():
        # transformers computes norms and rotations in float32
        torch.testing.assert_close(gradient, expected[key], rtol=1e-5, atol=1e-5 * expected[key].abs().max().item())


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("capacity", [1000, 45])
def test_loss_and_gradient_of_a_pack_equal_those_of_its_sequences(name: str, capacity: int) -> None:
    rng = random.Random(7)
    groups = [group(rng, rng.randint(1, 30), [rng.randint(1, 12) for _ in range(5)]) for _ in range(4)]
    assert_packed_equals_alone(name, groups, capacity)


def test_equal_and_nested_responses_are_computed_once_and_counted_each() -> None:
    rng = random.Random(3)
    twins = group(rng, 6, [4, 4, 4, 6], vocab=2)
    twins = [*twins, twins[0], twins[3]]
    assert_packed_equals_alone("llama", [twins], 1000)
    (share,) = pack_groups([twins], 1000, ranks=1)
    assert len(share[0].loss_scores) == sum(len(s.loss_at) for s in twins)
    assert len(share[0].score_positions) < len(share[0].loss_scores)


def test_long_segments_take_the_fused_path_and_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "LARGE", 64)
    rng = random.Random(5)
    assert_packed_equals_alone("llama", [group(rng, 20, [15, 2, 30]), group(rng, 3, [1, 2])], 1000)


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12)), min_size=2, max_size=6), st.randoms())
def test_segments_of_any_sizes_around_the_fused_path_attend_as_each_does_alone(
    sizes: list[tuple[int, int]], rng: random.Random
) -> None:
    with mock.patch.object(packed, "LARGE", 64):
        query_offsets = np.cumsum([0, *(own for own, _ in sizes)]).astype(np.int32)
        keys = []
        for i, (own, earlier) in enumerate(sizes):
            first = int(query_offsets[i])
            ancestors = sorted(rng.sample(range(first), min(earlier, first)))
            keys.append([*ancestors, *range(first, first + own)])
        key_offsets = np.cumsum([0, *map(len, keys)]).astype(np.int32)
        torch.manual_seed(rng.randrange(2**31))
        q, k, v = torch.randn(3, 1, 2, int(query_offsets[-1]), 4, dtype=torch.float64)
        together = PackedContext(query_offsets, key_offsets, np.concatenate(keys).astype(np.int32))
        out = together.attend(0, q, k, v, 0.5)[0]
    for i, seen in enumerate(keys):
        queries = slice(int(query_offsets[i]), int(query_offsets[i + 1]))
        scores = 0.5 * q[0, :, queries] @ k[0, :, seen].transpose(1, 2)
        hidden = torch.ones(scores.shape[1:]).triu(len(seen) - scores.shape[1] + 1).bool()
        alone = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v[0, :, seen]
        torch.testing.assert_close(out[queries], alone.transpose(0, 1), rtol=1e-5, atol=1e-5)  # parts add in float32
