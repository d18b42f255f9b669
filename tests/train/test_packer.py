"""Packing keeps every loss token, once, with its context, whatever the capacity and the number of ranks."""

import random
from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.config.recipe import Train
from arl.errors import InputError
from arl.train import channel
from arl.train.algorithms.advantage import GRPO
from arl.train.algorithms.decoupled_ppo import DecoupledPPO
from arl.train.micro_batch import MicroBatch, pack_groups
from arl.train.packing import COLUMNS, LossSequence, Packing, pack_batch
from tests.train.synthetic import batch, packed

Token = tuple[tuple[int, ...], int, float, int, float]  # context, target, behavior logprob, version, advantage


def groups_of(seed: int, count: int, vocab: int) -> list[list[LossSequence]]:
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        prompt = [rng.randrange(vocab) for _ in range(rng.randint(1, 12))]
        members = []
        for _ in range(rng.randint(0, 5)):
            tokens = np.array(prompt + [rng.randrange(vocab) for _ in range(rng.randint(1, 9))], np.int32)
            candidates = range(len(prompt), len(tokens))
            loss_at = np.array(sorted(rng.sample(candidates, rng.randint(1, len(candidates)))))
            advantages = np.full(len(loss_at), rng.choice([-1.0, 2.0]), np.float32)
            noise = np.array([rng.random() for _ in loss_at], np.float32)
            members.append(
                LossSequence(
                    tokens, loss_at, dict(zip(COLUMNS, (noise, loss_at.astype(np.int32), advantages), strict=True))
                )
            )
        made.append(members)
    return made


def expected(groups: list[list[LossSequence]]) -> Counter[Token]:
    return Counter(
        (tuple(s.token_ids[:t].tolist()), int(s.token_ids[t]), float(logprob), int(version), float(advantage))
        for group in groups
        for s in group
        for t, logprob, version, advantage in zip(s.loss_at, *(s.columns[name] for name in COLUMNS), strict=True)
    )


def contexts(micro_batch: MicroBatch) -> list[np.ndarray]:
    """The pack indices that each token sees, its own last."""
    seen = []
    starts, ends = micro_batch.key_offsets[:-1], micro_batch.key_offsets[1:]
    for queries, start, end in zip(np.diff(micro_batch.query_offsets), starts, ends, strict=True):
        seen += [micro_batch.key_indices[start : end - later] for later in reversed(range(queries))]
    return seen


def found(micro_batch: MicroBatch) -> list[Token]:
    """Every loss token, its context read back through the keys that its predecessor sees."""
    tokens, seen = [], contexts(micro_batch)
    for n, score in enumerate(micro_batch.loss_scores):
        at = micro_batch.score_positions[score]
        keys = seen[at]
        assert keys[-1] == at
        assert micro_batch.position_ids[keys].tolist() == list(range(len(keys)))
        tokens.append(
            (
                tuple(micro_batch.token_ids[keys].tolist()),
                int(micro_batch.score_targets[score]),
                float(micro_batch.columns["behavior_logprobs"][n]),
                int(micro_batch.columns["policy_versions"][n]),
                float(micro_batch.columns["advantages"][n]),
            )
        )
    return tokens


@given(st.integers(0, 10**6), st.integers(0, 8), st.integers(2, 20), st.integers(20, 90), st.integers(1, 5))
def test_every_loss_token_appears_exactly_once_in_its_own_context(
    seed: int, count: int, vocab: int, capacity: int, ranks: int
) -> None:
    groups = groups_of(seed, count, vocab)
    shares = pack_groups(groups, capacity, ranks)
    assert len({len(share) for share in shares}) == 1, "every rank computes equally many micro-batches"
    assert len(shares[0]) >= 1
    packs = [micro_batch for share in shares for micro_batch in share]
    assert all(0 < len(p.token_ids) <= capacity for p in packs)
    assert all((np.diff(p.loss_scores) >= 0).all() for p in packs), "a range of scores has a range of loss tokens"
    assert Counter(token for p in packs for token in found(p)) == expected(groups)


def test_a_trajectory_longer_than_the_capacity_is_refused_with_both_numbers() -> None:
    with pytest.raises(InputError, match=r"28 tokens .* train.capacity 20"):
        packed(batch(groups=4, size=2), minibatches=1, capacity=20, ranks=1)


def test_trajectories_without_gradient_are_left_out_but_counted() -> None:
    full = batch(groups=32, size=4)
    (shard,), report = packed(full, minibatches=1, capacity=1000, ranks=1)
    tokens = [sum(int(t.loss_mask.sum()) for t in g.trajectories) for g in full.groups]
    equal = [len({t.reward for t in g.trajectories}) == 1 for g in full.groups]
    assert 0 < sum(equal) < 32
    assert report["advantage/zero_fraction"] == sum(equal) / 32
    assert shard.minibatches[0].loss_tokens == sum(tokens)
    computed = sum(len(mb.loss_scores) for mb in shard.minibatches[0].micro_batches)
    assert computed == sum(n for n, e in zip(tokens, equal, strict=True) if not e)


def test_a_shard_survives_the_channel_bit_for_bit() -> None:
    train = Train(minibatches=2, capacity=1000)
    packing = Packing(train, DecoupledPPO(), GRPO(), ranks=1, records=True)
    (shard,), _ = pack_batch(batch(groups=4, size=4), packing)
    request = channel.RankRequest(1, channel.MAIN, channel.Step(shard))
    received = channel.decode_request(channel.encode(request)).body
    assert isinstance(received, channel.Step)
    for sent, got in zip(shard.minibatches, received.shard.minibatches, strict=True):
        assert sent.loss_tokens == got.loss_tokens
        *arrays, columns = msgspec.structs.astuple(sent.micro_batches[0])
        *others, received_columns = msgspec.structs.astuple(got.micro_batches[0])
        assert list(columns) == list(received_columns) == [*COLUMNS, "places"]
        for a, b in zip([*arrays, *columns.values()], [*others, *received_columns.values()], strict=True):
            assert a.dtype == b.dtype
            assert np.array_equal(a, b)
