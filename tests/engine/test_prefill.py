"""Prompts of a pass are computed as one prefix tree: nothing twice, and what separate forwards compute."""

import asyncio
import copy

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from arl.engine.embedded.batching import EmbeddedEngine
from arl.models.attention import ATTENTION
from arl.models.load import load_model
from arl.models.prefix_tree import how_many_fit, prefix_tree
from arl.models.slot_cache import SlotCache
from arl.types import Completion
from tests.engine.conftest import Weights, ask, complete, within

VOCAB = 5
# Prefixes by their length of a few stems, and one more token: shared, equal, and prefixes of each other.
SEQUENCES = st.lists(
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=24), min_size=1, max_size=4
).flatmap(
    lambda stems: st.lists(
        st.tuples(st.sampled_from(stems), st.integers(0, 24), st.integers(0, VOCAB - 1)).map(
            lambda cut: np.array([*cut[0][: cut[1]], cut[2]], np.int32)
        ),
        min_size=1,
        max_size=12,
    )
)  # fmt: skip


def _llama() -> tuple[PreTrainedModel, PreTrainedModel]:
    """One random model of grouped heads, through our attention and through stock transformers'."""
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    stock = AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation="sdpa").double().eval()
    ours = AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION).double().eval()
    with torch.no_grad():
        for parameter in stock.parameters():
            parameter.normal_(std=0.3)
    ours.load_state_dict(stock.state_dict())
    return ours, stock


OURS, STOCK = _llama()


@torch.inference_mode()
def _after(sequence: list[int]) -> torch.Tensor:
    """Logprobs (V,) of the next token, by a forward of this sequence alone."""
    logits: torch.Tensor = STOCK(torch.tensor([sequence]), use_cache=False).logits[0, -1]
    return logits.log_softmax(-1)


@given(SEQUENCES, SEQUENCES)
@torch.inference_mode()
def test_tree_prefill_agrees_with_separate_forwards(first: list[np.ndarray], second: list[np.ndarray]) -> None:
    """The last token of each prompt, then a decoded token that reads the slots, next to a second prefill."""
    cache = SlotCache(OURS.config, len(first) + len(second), torch.float64, torch.device("cpu"))
    lengths = np.zeros(0, np.int64)
    expected: list[list[int]] = []
    for arrivals in (first, second):
        tree = prefix_tree(arrivals)
        own = np.array([len(s) for s in arrivals])
        ends = tree.paths[np.arange(len(arrivals)), own - 1]
        for sequence in expected:
            sequence.append(1)
        cache.plan(torch.from_numpy(lengths), int(lengths.max(initial=-1)) + 1, tree)
        got = OURS(
            input_ids=torch.from_numpy(np.concatenate([np.ones_like(lengths), tree.token_ids]))[None],
            position_ids=torch.from_numpy(np.concatenate([lengths, tree.position_ids]))[None],
            use_cache=False,
            context=cache,
        ).logits[0, np.concatenate([np.arange(len(lengths)), len(lengths) + ends])]
        expected += [s.tolist() for s in arrivals]
        reference = torch.stack([_after(sequence) for sequence in expected])
        # transformers computes norms and rotations in float32
        torch.testing.assert_close(got.log_softmax(-1), reference, rtol=0, atol=2e-5)
        lengths = np.concatenate([lengths + 1, own])


@given(SEQUENCES, st.integers(1, 60))
def test_a_tree_stores_every_distinct_prefix_once(sequences: list[np.ndarray], limit: int) -> None:
    tree = prefix_tree(sequences)
    for path, sequence in zip(tree.paths, sequences, strict=True):
        assert tree.token_ids[path[: len(sequence)]].tolist() == sequence.tolist()
        assert tree.position_ids[path[: len(sequence)]].tolist() == list(range(len(sequence)))

    def distinct(some: list[np.ndarray]) -> int:
        return len({tuple(s[: i + 1].tolist()) for s in some for i in range(len(s))})

    assert len(tree.token_ids) == distinct(sequences)
    fit = how_many_fit(sequences, limit)
    assert distinct(sequences[:fit]) <= limit
    assert fit == len(sequences) or distinct(sequences[: fit + 1]) > limit


def test_a_resumed_group_shares_its_prompts_prefill(old: Weights) -> None:
    """Two groups of 4, arriving in turns: each prompt is computed once, before and after the cache was dropped."""
    passes: list[tuple[int, int]] = []
    prompts = [(group,) * 26 for group in (0, 1)]
    enough = asyncio.Event()

    def cost(prefill: int, decode: int) -> float:
        passes.append((prefill, decode))
        if len(passes) == 5:
            enough.set()
        return 0.0

    async def scenario() -> tuple[int, list[Completion]]:
        async with EmbeddedEngine(load_model(old.path, "float32"), slots=8, step_cost=cost) as engine:
            requests = [ask(f"r{i}", prompts[i % 2], 30, seed=i) for i in range(8)]
            answers = asyncio.gather(*(complete(engine, request) for request in requests))
            await enough.wait()
            await engine.pause()
            said = len(passes)
            await engine.resume()
            return said, await answers

    said, answers = within(scenario)
    assert passes[0] == (2 * 26, 0)
    continuations = {(i % 2, a.token_ids[: n + 1]) for i, a in enumerate(answers) for n in range(said)}
    assert passes[said] == (2 * 26 + len(continuations), 0)
    assert all(prefill == 0 for prefill, _ in passes[1:said] + passes[said + 1 :])
    for i, answer in enumerate(answers):
        reference = old.logprobs(prompts[i % 2], answer.token_ids)
        np.testing.assert_allclose(answer.logprobs, reference, rtol=0, atol=1e-4)
