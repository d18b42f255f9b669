"""Prompts of a pass are computed as one prefix tree: nothing twice, and what separate forwards compute."""

import asyncio

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from arl.engine.embedded.batching import EmbeddedEngine
from arl.models.load import load_model
from arl.models.prefix_tree import how_many_fit, prefix_tree
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
