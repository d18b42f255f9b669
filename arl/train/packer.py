"""Pack a batch into what each rank computes. Torch-free: the controller packs, a rank receives only its shard.

    Batch ─► advantages ─► minibatches (whole groups, fixed here) ─► bundles ─► packs of sequences ─► a shard per rank

Ranks wait for the packing, so it only counts and chooses: each rank joins the sequences of its own micro-batches while
it computes (arl.train.shard).

A bundle is what is left of a group. If the objective says that advantage 0 means gradient 0, trajectories whose
advantages are all exactly 0 are left out; the loss is still divided by the number of tokens before that. A micro-batch
is stored as a prefix tree (arl.models.prefix_tree). Bundles keep the trajectories together that share most.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, Self

import numpy as np
from msgspec import Struct

from arl.config.objective_section import AdvantageSection, ObjectiveSection
from arl.config.recipe import Train
from arl.data.model_limits import Flops
from arl.errors import InputError
from arl.models.prefix_tree import shared_lengths
from arl.train.algorithms.advantage import Advantage
from arl.train.balancer import Bins, balance
from arl.train.count_packing import algorithm_1, deal_evenly, fixed_count
from arl.train.loss_sequence import LossSequence, loss_sequences
from arl.train.micro_batch import MicroBatch, SequencePack, join
from arl.types import Batch

BY_TOKENS = Flops(token=1.0, key=0.0, score=0.0)  # for one rank, which waits for nobody


class SequenceMinibatch(Struct, frozen=True):
    """Hold one rank's part of an optimizer update: the sequences of each micro-batch, which the rank joins."""

    packs: tuple[SequencePack, ...]  # this rank's; every rank has as many, at least one
    loss_tokens: int  # of all ranks, before trajectories without gradient were left out
    loss_sequences: int  # likewise: trajectories with loss tokens


class SequenceShard(Struct, frozen=True):
    """Hold one rank's part of the step that turns version `version` into version + 1, as it is sent to the rank."""

    version: int
    minibatches: tuple[SequenceMinibatch, ...]


class Packing(Struct, frozen=True, kw_only=True):
    """Say how the batches of a run are packed."""

    minibatches: int
    capacity: int  # tokens of a micro-batch
    ranks: int
    advantage: Advantage
    leaves_out_zeros: bool  # the objective says that advantage 0 means gradient 0
    flops: Flops = BY_TOKENS  # of the model, by which micro-batches are balanced over ranks
    records: bool = False  # the run writes what is computed of each token: see arl.train.trained_tokens
    kind: Literal["balanced", "algorithm1", "fixed"] = "balanced"  # see train.packing
    count: int = 1  # see train.packing_count

    @classmethod
    def of(
        cls,
        train: Train,
        objective: ObjectiveSection,
        advantage: AdvantageSection,
        *,
        ranks: int,
        flops: Flops = BY_TOKENS,
        records: bool = False,
    ) -> Self:
        """Read the packing from the sections of a recipe."""
        assert isinstance(advantage, Advantage), "the recipe has checked it"
        return cls(
            minibatches=train.minibatches,
            capacity=train.capacity,
            ranks=ranks,
            advantage=advantage,
            leaves_out_zeros=objective.leaves_out_zeros,
            flops=flops,
            records=records,
            kind=train.packing,
            count=train.packing_count,
        )


def pack_batch(batch: Batch, packing: Packing) -> tuple[tuple[SequenceShard, ...], dict[str, float]]:
    """Compute advantages and pack one step: a shard for each rank, and the metrics of what is trained.

    Minibatch m takes groups m, m + minibatches, …: batches are ordered by deadline, so each sees every age.

    Raises:
        InputError: a trajectory longer than the capacity, groups that `minibatches` does not divide, or an advantage
            of the wrong shape.
    """
    if len(batch.groups) % packing.minibatches:
        raise InputError(
            f"train.minibatches {packing.minibatches} must divide the {len(batch.groups)} groups of a step"
        )
    groups = loss_sequences(batch, packing.advantage, places=packing.records)
    packed = []  # [minibatch][rank]
    for m in range(packing.minibatches):
        own = groups[m :: packing.minibatches]
        packed.append(_pack_minibatch(own, packing))
    shards = tuple(SequenceShard(batch.version, of_rank) for of_rank in zip(*packed, strict=True))
    return shards, _report(groups)


def _report(groups: Sequence[Sequence[LossSequence]]) -> dict[str, float]:
    """Return the metrics of what a step trains; arl/metrics/names.py defines them."""
    sequences = [s for group in groups for s in group]
    num_zero = sum(not s.has_advantage for s in sequences)
    num_trained = sum(len(s.loss_at) for s in sequences)
    return {
        "advantage/zero_fraction": num_zero / len(sequences),
        "tokens/trained": float(num_trained),
    }


def _pack_minibatch(groups: list[list[LossSequence]], packing: Packing) -> list[SequenceMinibatch]:
    """Pack a minibatch: one part for each rank."""
    lengths = [len(s.loss_at) for group in groups for s in group]
    loss_tokens = sum(lengths)
    loss_sequences = sum(n > 0 for n in lengths)
    kept = [[s for s in group if _is_trained(s, packing)] for group in groups]
    if packing.kind == "balanced":
        packed = choose_packs(kept, packing.capacity, packing.ranks, packing.flops)
    else:
        packed = _pack_by_count(kept, packing)
    return [SequenceMinibatch(packs, loss_tokens, loss_sequences) for packs in packed]


def _is_trained(sequence: LossSequence, packing: Packing) -> bool:
    """Return False for a sequence that has no gradient."""
    if not len(sequence.loss_at):
        return False
    return sequence.has_advantage or not packing.leaves_out_zeros


def pack_groups(
    groups: Sequence[Sequence[LossSequence]],
    capacity: int,
    ranks: int,
    flops: Flops = BY_TOKENS,
) -> list[tuple[MicroBatch, ...]]:
    """Pack one minibatch into micro-batches for each rank, and join them; see choose_packs."""
    of_ranks = choose_packs(groups, capacity, ranks, flops)
    return [tuple(join(pack) for pack in of_rank) for of_rank in of_ranks]


def choose_packs(
    groups: Sequence[Sequence[LossSequence]],
    capacity: int,
    ranks: int,
    flops: Flops = BY_TOKENS,
) -> list[tuple[SequencePack, ...]]:
    """Choose the sequences of each micro-batch of a minibatch: equally many for each rank, heaviest first.

    Every rank has at least one micro-batch, if need be without sequences.

    Raises:
        InputError: a sequence longer than `capacity`.
    """
    bundles = [bundle for group in groups for bundle in bundles_of(group, capacity)]
    sizes = [bundle.num_tokens for bundle in bundles]
    work = [bundle.flops(flops) for bundle in bundles]
    balanced = balance(np.array(sizes, np.int64), np.array(work, np.float64), capacity, ranks)
    sequences = [bundle.sequences for bundle in bundles]
    return [_packs(sequences, of_rank) for of_rank in balanced]


def _pack_by_count(groups: Sequence[Sequence[LossSequence]], packing: Packing) -> list[tuple[SequencePack, ...]]:
    """Pack one minibatch of single sequences, by arl.train.count_packing; see choose_packs.

    Raises:
        InputError: a sequence longer than the capacity, or too many for a micro-batch.
    """
    sequences = [[sequence] for group in groups for sequence in group]
    lengths = np.array([len(_stored(sequence)) for (sequence,) in sequences], np.int64)
    _refuse_too_long(int(lengths.max(initial=0)), packing.capacity)
    if packing.kind == "algorithm1":
        bins = algorithm_1(lengths, packing.capacity, packing.count * packing.ranks)
    else:
        bins = fixed_count(lengths, packing.capacity, packing.count)
    shares = deal_evenly(bins, lengths.astype(np.float64), packing.ranks)
    return [_packs(sequences, of_rank) for of_rank in shares]


def _packs(bundles: Sequence[Sequence[LossSequence]], chosen: Bins) -> tuple[SequencePack, ...]:
    """Join the sequences of the bundles in each micro-batch of a rank."""
    return tuple(SequencePack.of([s for i in members for s in bundles[i]]) for members in chosen)


def _stored(sequence: LossSequence) -> np.ndarray:
    """Return the tokens to compute, (L,) int32. Nothing needs the hidden states from the last loss token on."""
    return sequence.token_ids[: sequence.loss_at[-1]]


class Bundle(NamedTuple):
    """Hold sequences of a group that stay together, and what their prefix tree stores."""

    sequences: list[LossSequence]
    num_tokens: int
    num_keys: int  # pairs of a stored token and a key that it sees

    def flops(self, flops: Flops) -> float:
        """Estimate a forward. Counts every score, although equal continuations will share some."""
        num_scores = sum(len(s.loss_at) for s in self.sequences)
        return flops.of(self.num_tokens, self.num_keys, num_scores)


def bundles_of(group: Sequence[LossSequence], capacity: int) -> Iterator[Bundle]:
    """Sort the group, and cut it where its prefix tree outgrows `capacity`; every part holds the prompt again.

    A sequence adds to the tree what it does not share with the one before it in the sorted order. A token at position
    p sees p + 1 keys.
    """
    stored = [(_stored(s), s) for s in group]
    longest = max((len(tokens) for tokens, _ in stored), default=0)
    _refuse_too_long(longest, capacity)
    stored.sort(key=lambda pair: pair[0].tobytes())
    shared = shared_lengths([tokens for tokens, _ in stored])
    members: list[LossSequence] = []
    num_tokens = 0
    num_keys = 0
    for (tokens, sequence), num_shared in zip(stored, shared, strict=True):
        length = len(tokens)
        if members and num_tokens + length - num_shared > capacity:
            yield Bundle(members, num_tokens, num_keys)
            members = []
            num_tokens = 0
            num_keys = 0
        num_known = num_shared if members else 0
        members.append(sequence)
        num_tokens += length - num_known
        num_keys += _sum_up_to(length) - _sum_up_to(num_known)
    if members:
        yield Bundle(members, num_tokens, num_keys)


def _sum_up_to(n: int) -> int:
    """Return 1 + 2 + … + n."""
    return n * (n + 1) // 2


def _refuse_too_long(longest: int, capacity: int) -> None:
    if longest > capacity:
        raise InputError(
            f"a trajectory of {longest} tokens does not fit train.capacity {capacity}: raise the capacity "
            "or lower rollout.max_new_tokens"
        )
