"""Pack a batch into what each rank computes. Torch-free: the controller packs, a rank receives only its shard.

    Batch ─► advantages ─► LossSequence of each trajectory ─► minibatches (whole groups) ─► bundles ─► SequencePack
          ─► a Shard for each rank ─► arl.train.micro_batch joins it ─► Learner.step ─► TokenLogprobs ─► trained_tokens

Ranks wait for the packing, so it only counts and chooses: each rank joins the sequences of its own micro-batches while
it computes.

A bundle is what is left of a group. If the objective says that advantage 0 means gradient 0, trajectories whose
advantages are all exactly 0 are left out; the loss is still divided by the number of tokens before that. A micro-batch
is stored as a prefix tree (arl.models.prefix_tree). Bundles keep the trajectories together that share most.

Every stage holds its loss tokens' numbers as columns by name, so that a further one passes through without a change.
A column that ranks compute (arl.train.algorithms.objective) is added there, and never travels.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, Self, TypeVar

import numpy as np
from msgspec import Struct

from arl.config.objective_section import AdvantageSection, ObjectiveSection
from arl.config.recipe import Train
from arl.config.teacher_section import TEACHER, TOP_IDS, TOP_LOGPROBS
from arl.data.model_limits import Flops
from arl.errors import InputError
from arl.models.prefix_tree import shared_lengths
from arl.train.algorithms.advantage import Advantage, EpisodeColumns
from arl.train.balance import Bins, algorithm_1, balance, deal_evenly, fixed_count
from arl.types import NOT_SAMPLED, Batch, TokenScores, TrainedTokens, Trajectory

BY_TOKENS = Flops(token=1.0, key=0.0, score=0.0)  # for one rank, which waits for nobody
# What every batch carries of each loss token. A place is the token's index among those of the step: one trajectory's
# after the other's, group by group. The packer cuts, shares and sorts loss tokens; their places stay with them.
COLUMNS = {
    "behavior_logprobs": np.float32,
    "policy_versions": np.int32,
    "advantages": np.float32,
}
PLACES = "places"  # (N,) int32, a further column if the run records what is computed of each token

Pack = TypeVar("Pack")


class LossSequence(Struct, frozen=True):
    """Hold what the loss needs of one trajectory: L tokens, n of them in the loss."""

    token_ids: np.ndarray  # (L,) int32
    loss_at: np.ndarray  # (n,) int, index of each loss token, ascending, > 0
    columns: dict[str, np.ndarray]  # (n,) each: COLUMNS, and places if somebody asks for them

    @property
    def has_advantage(self) -> bool:
        """Return whether an advantage is not 0."""
        return bool(self.columns["advantages"].any())


class SequencePack(Struct, frozen=True, kw_only=True):
    """Hold n sequences of one micro-batch, one after the other: L tokens up to the last loss token, N loss tokens."""

    token_ids: np.ndarray  # (L,) int32
    lengths: np.ndarray  # (n,) int32, summing to L
    num_loss_tokens: np.ndarray  # (n,) int32, summing to N
    loss_at: np.ndarray  # (N,) int32, index of each loss token in its own sequence, ascending, > 0
    columns: dict[str, np.ndarray]  # (N,) each

    @classmethod
    def of(cls, sequences: Sequence[LossSequence]) -> Self:
        """Copy what the loss needs of `sequences`. What comes behind a sequence's last loss token is left out."""
        tokens = [s.token_ids[: s.loss_at[-1] + 1] for s in sequences]
        names = sequences[0].columns if sequences else COLUMNS
        return cls(
            token_ids=_joined(tokens),
            lengths=np.array([len(ids) for ids in tokens], np.int32),
            num_loss_tokens=np.array([len(s.loss_at) for s in sequences], np.int32),
            loss_at=_joined(s.loss_at for s in sequences),
            columns={name: _joined((s.columns[name] for s in sequences), COLUMNS.get(name)) for name in names},
        )


def _joined(arrays: Iterable[np.ndarray], dtype: Any = None) -> np.ndarray:
    """Join arrays, of which there may be none, into one of `dtype`, or of int32."""
    given = list(arrays)
    if not given:
        return np.zeros(0, dtype or np.int32)
    return np.concatenate(given, dtype=dtype or given[0].dtype, casting="same_kind")


class Minibatch(Struct, Generic[Pack], frozen=True):
    """Hold one rank's part of an optimizer update."""

    micro_batches: Sequence[Pack]  # this rank's; every rank has as many, at least one
    loss_tokens: int  # of all ranks, before trajectories without gradient were left out
    loss_sequences: int  # likewise: trajectories with loss tokens


class Shard(Struct, Generic[Pack], frozen=True):
    """Hold one rank's part of the step that turns version `version` into version + 1.

    Its packs are SequencePack as it is sent to the rank, and MicroBatch when the rank has joined them.
    """

    version: int
    minibatches: Sequence[Minibatch[Pack]]


class Packing(Struct, frozen=True):
    """Say how the batches of a run are packed."""

    train: Train  # its capacity, minibatches and packing
    objective: ObjectiveSection  # may say that advantage 0 means gradient 0
    advantage: AdvantageSection
    ranks: int
    flops: Flops = BY_TOKENS  # of the model, by which micro-batches are balanced over ranks
    records: bool = False  # the run writes what is computed of each token: see trained_tokens


def pack_batch(batch: Batch, packing: Packing) -> tuple[tuple[Shard[SequencePack], ...], dict[str, float]]:
    """Compute advantages and pack one step: a shard for each rank, and the metrics of what is trained.

    Minibatch m takes groups m, m + minibatches, …: batches are ordered by deadline, so each sees every age.

    Raises:
        InputError: a trajectory longer than the capacity, or an advantage of the wrong shape.
    """
    minibatches = packing.train.minibatches
    assert len(batch.groups) % minibatches == 0, "the recipe has checked it"
    has_rewards = not packing.objective.learns_from_teacher_alone
    groups = loss_sequences(batch, packing.advantage if has_rewards else None, places=packing.records)
    packed = [_pack_minibatch(groups[m::minibatches], packing) for m in range(minibatches)]  # [minibatch][rank]
    shards = tuple(Shard(batch.version, of_rank) for of_rank in zip(*packed, strict=True))
    sequences = [s for group in groups for s in group]
    report = {"tokens/trained": float(sum(len(s.loss_at) for s in sequences))}
    if has_rewards and not packing.advantage.columns:
        report["advantage/zero_fraction"] = sum(not s.has_advantage for s in sequences) / len(sequences)
    return shards, report


def _pack_minibatch(groups: list[list[LossSequence]], packing: Packing) -> list[Minibatch[SequencePack]]:
    """Pack a minibatch: one part for each rank. Sequences without a gradient are left out."""
    train = packing.train
    leaves_out_zeros = packing.objective.leaves_out_zeros and not packing.advantage.columns
    lengths = [len(s.loss_at) for group in groups for s in group]
    kept = [[s for s in group if len(s.loss_at) and (s.has_advantage or not leaves_out_zeros)] for group in groups]
    if train.packing == "balanced":
        packed = choose_packs(kept, train.capacity, packing.ranks, packing.flops)
    else:
        packed = _pack_by_count([s for group in kept for s in group], train, packing.ranks)
    return [Minibatch(packs, sum(lengths), sum(n > 0 for n in lengths)) for packs in packed]


def loss_sequences(batch: Batch, advantage: AdvantageSection | None, places: bool = False) -> list[list[LossSequence]]:
    """Build the loss sequences of a batch, group by group; with `places`, number its loss tokens.

    Args:
        advantage: None: rewards are not used, and advantages are 0.

    Raises:
        InputError: a loss token that no policy sampled; or the advantage returned another shape than it declares, or a
            number that is not finite.
    """
    trajectories = [t for group in batch.groups for t in group.trajectories]
    # All trajectories at once, because there may be ten thousand of them. T loss tokens lie behind one another.
    lengths = [len(t.token_ids) for t in trajectories]
    ends = np.cumsum(lengths)
    starts = ends - lengths
    at = np.flatnonzero(np.concatenate([t.loss_mask for t in trajectories]))  # (T,)
    counts = np.searchsorted(at, ends) - np.searchsorted(at, starts)  # (N,), of each trajectory
    loss_at = (at - np.repeat(starts, counts)).astype(np.int32)
    versions = np.concatenate([t.policy_versions for t in trajectories])[at]
    assert (loss_at > 0).all(), "the first token of a trajectory is never sampled"
    if (unsampled := versions == NOT_SAMPLED).any():
        owners = [group.group_id for group in batch.groups for _ in group.trajectories]
        owner = owners[int(np.searchsorted(ends, at[unsampled.argmax()], side="right"))]
        raise InputError(
            f"group {owner}: loss_mask marks a token of policy version {NOT_SAMPLED}, which no policy sampled; leave "
            "the tokens of prompts, tools and users out of it"
        )
    begins = [i for i, trajectory in enumerate(trajectories) if trajectory.branch == 0]
    episodes = EpisodeColumns(  # an episode counts once, with the loss tokens of all of its branches
        rewards=np.array([trajectories[i].reward for i in begins], np.float64),
        group_sizes=np.array([len(group.episodes) for group in batch.groups], np.int64),
        num_loss_tokens=np.add.reduceat(counts, begins),
    )
    columns = {
        "behavior_logprobs": np.concatenate([t.behavior_logprobs for t in trajectories])[at],
        "policy_versions": versions,
        "advantages": np.zeros(len(at), np.float32),
    }
    if advantage is not None and not advantage.columns:
        columns["advantages"] = advantages_per_token(advantage, episodes)
    elif advantage is not None:  # ranks make the advantages of it: each branch gets its episode's reward, at its end
        rewards = np.repeat(episodes.rewards, np.diff([*begins, len(trajectories)]))
        columns["advantages"][np.cumsum(counts)[counts > 0] - 1] = rewards[counts > 0]
    columns |= _teacher_columns(trajectories, at)
    if places:
        columns[PLACES] = np.arange(len(at), dtype=np.int32)
    sequences = []
    ends = np.cumsum(counts)
    for trajectory, begin, end in zip(trajectories, (ends - counts).tolist(), ends.tolist(), strict=True):
        own = {name: column[begin:end] for name, column in columns.items()}
        sequences.append(LossSequence(trajectory.token_ids, loss_at[begin:end], own))
    following = iter(sequences)
    return [list(islice(following, len(group.trajectories))) for group in batch.groups]


def _teacher_columns(trajectories: Sequence[Trajectory], at: np.ndarray) -> dict[str, np.ndarray]:
    """Return what a teacher that is an engine said of the loss tokens, which lie `at` these indices of all tokens."""
    known = next((t.teacher for t in trajectories if t.teacher is not None), None)
    if known is None:
        return {}
    top_k = known.top_ids.shape[1]
    scores = [t.teacher or TokenScores.empty(len(t.token_ids), top_k) for t in trajectories]  # it has no loss token
    fields = {TOP_IDS: "top_ids", TOP_LOGPROBS: "top_logprobs"} if top_k else {TEACHER: "logprobs"}
    return {name: np.concatenate([getattr(s, field) for s in scores])[at] for name, field in fields.items()}


def advantages_per_token(advantage: AdvantageSection, episodes: EpisodeColumns) -> np.ndarray:
    """Compute the advantages of a step, (T,) float32: one episode's loss tokens after the other's.

    Raises:
        InputError: `advantage` returned another shape than it declares, or a number that is not finite.
    """
    assert isinstance(advantage, Advantage), "the recipe has checked it"
    computed = np.asarray(advantage.compute(episodes))
    lengths = episodes.num_loss_tokens
    expected = len(lengths) if advantage.per == "trajectory" else int(lengths.sum())
    if computed.shape != (expected,):
        raise InputError(
            f"advantage.kind {advantage.kind}: compute returned an array of shape {computed.shape}, and it declares "
            f"one number per {advantage.per}, which is ({expected},) in this step"
        )
    if not np.isfinite(computed).all():
        raise InputError(f"advantage.kind {advantage.kind}: compute returned numbers that are not finite")
    numbers = computed.astype(np.float32)
    return np.repeat(numbers, lengths) if advantage.per == "trajectory" else numbers


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
    sizes = np.array([bundle.num_tokens for bundle in bundles], np.int64)
    work = np.array([bundle.flops(flops) for bundle in bundles], np.float64)
    return _packs([bundle.sequences for bundle in bundles], balance(sizes, work, capacity, ranks))


def _pack_by_count(sequences: list[LossSequence], train: Train, ranks: int) -> list[tuple[SequencePack, ...]]:
    """Pack one minibatch of single sequences, by arl.train.balance; see choose_packs.

    Raises:
        InputError: a sequence longer than the capacity, or too many for a micro-batch.
    """
    lengths = np.array([len(_stored(sequence)) for sequence in sequences], np.int64)
    _refuse_too_long(int(lengths.max(initial=0)), train.capacity)
    if train.packing == "algorithm1":
        bins = algorithm_1(lengths, train.capacity, train.packing_count * ranks)
    else:
        bins = fixed_count(lengths, train.capacity, train.packing_count)
    shares = deal_evenly(bins, lengths.astype(np.float64), ranks)
    return _packs([[sequence] for sequence in sequences], shares)


def _packs(bundles: Sequence[Sequence[LossSequence]], shares: Sequence[Bins]) -> list[tuple[SequencePack, ...]]:
    """Join the sequences of the bundles in each micro-batch of each rank."""
    packs = []
    for of_rank in shares:
        chosen = [[s for i in members for s in bundles[i]] for members in of_rank]
        packs.append(tuple(map(SequencePack.of, chosen)))
    return packs


def _stored(sequence: LossSequence) -> np.ndarray:
    """Return the tokens to compute, (L,) int32. Nothing needs the hidden states from the last loss token on."""
    return sequence.token_ids[: sequence.loss_at[-1]]


@dataclass
class Bundle:
    """Hold sequences of a group that stay together, and what their prefix tree stores."""

    num_tokens: int = 0
    num_keys: int = 0  # pairs of a stored token and a key that it sees
    sequences: list[LossSequence] = field(default_factory=list)

    def add(self, sequence: LossSequence, length: int, num_shared: int) -> None:
        """Add a sequence, `num_shared` of whose `length` tokens are stored. A token at position p sees p + 1 keys."""
        self.sequences.append(sequence)
        self.num_tokens += length - num_shared
        self.num_keys += (length * (length + 1) - num_shared * (num_shared + 1)) // 2

    def flops(self, flops: Flops) -> float:
        """Estimate a forward. Counts every score, although equal continuations will share some."""
        num_scores = sum(len(s.loss_at) for s in self.sequences)
        return flops.of(self.num_tokens, self.num_keys, num_scores)


def bundles_of(group: Sequence[LossSequence], capacity: int) -> list[Bundle]:
    """Sort the group, and cut it where its prefix tree outgrows `capacity`; every part holds the prompt again.

    A sequence adds to the tree what it does not share with the one before it in the sorted order.
    """
    stored = [(_stored(s), s) for s in group]
    _refuse_too_long(max((len(tokens) for tokens, _ in stored), default=0), capacity)
    stored.sort(key=lambda pair: pair[0].tobytes())
    shared = shared_lengths([tokens for tokens, _ in stored])
    bundles: list[Bundle] = []
    for (tokens, sequence), num_shared in zip(stored, shared, strict=True):
        length = len(tokens)
        if bundles and bundles[-1].num_tokens + length - num_shared <= capacity:
            bundles[-1].add(sequence, length, num_shared)
        else:
            bundles.append(Bundle())
            bundles[-1].add(sequence, length, num_shared=0)
    return bundles


def _refuse_too_long(longest: int, capacity: int) -> None:
    if longest > capacity:
        raise InputError(
            f"a trajectory of {longest} tokens does not fit train.capacity {capacity}: raise the capacity "
            "or lower rollout.max_new_tokens"
        )


class TokenLogprobs(Struct, frozen=True):
    """Hold what one rank computed of N loss tokens in a step, in the order of its micro-batches."""

    places: np.ndarray  # (N,) int32
    columns: dict[
        str, np.ndarray
    ]  # (N,) float32 each: current_logprobs; proximal_logprobs, advantages if ranks make them


def trained_tokens(
    batch: Batch,
    shards: Sequence[Shard[SequencePack]],
    of_ranks: Sequence[TokenLogprobs | None],
    packing: Packing,
) -> TrainedTokens | None:
    """Join what the packer and the ranks know of the T loss tokens of a step; None if nobody asked for places.

    Args:
        shards: what the ranks were given, with places.
        of_ranks: what they returned; None: that rank computed no loss token.
        packing: by which they were packed.
    """
    if not packing.records:
        return None
    num_tokens = sum(int(t.loss_mask.sum()) for group in batch.groups for t in group.trajectories)
    advantages = np.zeros(num_tokens, np.float32)  # 0 of what the packer left out: it has no other advantage
    for pack in (pack for shard in shards for minibatch in shard.minibatches for pack in minibatch.micro_batches):
        if PLACES in pack.columns:  # else it is empty
            advantages[pack.columns[PLACES]] = pack.columns["advantages"]
    computed: dict[str, np.ndarray] = {}
    for known in of_ranks:
        if known is not None:
            for name, column in known.columns.items():
                in_order = computed.setdefault(name, np.full(num_tokens, np.nan, np.float32))
                in_order[known.places] = column
    are_of_tokens = packing.advantage.per == "token" or "advantages" in computed
    return TrainedTokens(computed.pop("advantages", advantages), are_of_tokens, **computed)
