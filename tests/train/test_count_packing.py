"""Packing by numbers of sequences puts each into one micro-batch that fits, and changes no loss token."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.config.recipe import Train
from arl.errors import InputError
from arl.train.algorithms.decoupled_ppo import DecoupledPPO
from arl.train.algorithms.grpo import GRPO
from arl.train.count_packing import algorithm_1, fixed_count
from arl.train.micro_batch import MicroBatch
from arl.train.packer import Packing, pack_batch
from arl.train.shard import join_shard, pack_sizes, packing_report
from tests.train.synthetic import batch

lengths = st.lists(st.integers(1, 50), max_size=40).map(lambda drawn: np.array(drawn, np.int64))


@given(lengths, st.integers(50, 120), st.integers(1, 9))
def test_algorithm_1_packs_every_sequence_once_within_the_capacity_and_opens_enough_bins(
    drawn: np.ndarray, capacity: int, k_min: int
) -> None:
    bins = algorithm_1(drawn, capacity, k_min)
    assert sorted(item for members in bins for item in members) == list(range(len(drawn)))
    assert all(drawn[members].sum() <= capacity for members in bins)
    assert len(bins) >= min(k_min, len(drawn))


def test_algorithm_1_fills_the_fitting_bin_with_the_fewest_sequences() -> None:
    bins = algorithm_1(np.array([5, 9, 4, 3, 1]), 10, 2)
    assert bins == [[1, 4], [0, 2], [3]]
    assert algorithm_1(np.array([2, 2, 2, 2, 2]), 10, 3) == [[0, 3], [1, 4], [2]]


def test_more_sequences_than_fit_are_refused_with_the_remedy() -> None:
    with pytest.raises(InputError, match=r"train.packing_count 3: so many sequences have 12 tokens here.* lower"):
        fixed_count(np.array([4, 4, 4]), 10, 3)


@pytest.mark.parametrize(("kind", "count"), [("algorithm1", 3), ("fixed", 2)])
@pytest.mark.parametrize("ranks", [1, 3])
def test_loss_tokens_are_those_of_the_balanced_packing(kind: str, count: int, ranks: int) -> None:
    given_batch = batch()

    def tokens(train: Train) -> Counter[tuple[float, ...]]:
        packing = Packing.of(train, DecoupledPPO(), GRPO(), ranks=ranks)
        chosen, _ = pack_batch(given_batch, packing)
        shards = [join_shard(shard) for shard in chosen]
        sizes = [pack_sizes(shard, packing.flops) for shard in shards]
        metrics = packing_report(given_batch, sizes, packing)
        packs: list[MicroBatch] = [m for shard in shards for mini in shard.minibatches for m in mini.micro_batches]
        assert max(len(pack.token_ids) for pack in packs) <= train.capacity
        assert metrics["packing/balance"] >= 1
        found: Counter[tuple[float, ...]] = Counter()
        for pack in packs:
            targets = pack.score_targets[pack.loss_scores]
            rows = zip(targets, pack.behavior_logprobs, pack.policy_versions, pack.advantages, strict=True)
            found.update(tuple(float(value) for value in row) for row in rows)
        return found

    balanced = Train(minibatches=1, capacity=400)
    assert tokens(balanced) == tokens(balanced.model_copy(update={"packing": kind, "packing_count": count}))
