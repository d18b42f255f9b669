"""Compute the columns of loss tokens that ranks fill, with the policy and with the models beside it.

micro-batches of a step ─► reference, teacher, versions that sampled, critic, policy before its updates ─► RankColumns
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from arl.config.objective_section import REFERENCE, SAMPLED
from arl.config.recipe import AdvantageSection, Train
from arl.config.teacher_section import TEACHER, TOP_IDS, TOP_LOGPROBS, Teacher
from arl.models.model_files import local_copy
from arl.train.algorithms.distillation import NO_TOKEN
from arl.train.algorithms.objective import Objective
from arl.train.algorithms.terms import penalized
from arl.train.critic import Critic
from arl.train.micro_batch import MicroBatch
from arl.train.other_versions import MovingAverage, SamplingVersions
from arl.train.packing import Minibatch
from arl.train.placed_batch import place_batch
from arl.train.scored_model import RankColumns, ScoredModel
from arl.train.sharded_model import ShardedModel

PROXIMAL = "proximal_logprobs"


class ModelsBeside:
    """Hold the models beside the policy on one rank, as far as the recipe asks for them.

    Args:
        policy, path: the model that is trained, and the directory that it started from.
        train, objective, advantage, temperature, version, resumed, oldest_age: see Learner.
    """

    def __init__(
        self,
        policy: ShardedModel,
        path: Path,
        train: Train,
        objective: Objective,
        advantage: AdvantageSection | None,
        temperature: float,
        version: int,
        resumed: bool,
        oldest_age: int,
    ) -> None:
        self._policy = policy
        self._objective = objective
        self.frozen: dict[str, ScoredModel] = {}  # by the column that each computes
        self._average: MovingAverage | None = None
        self._sampling: SamplingVersions | None = None
        self.critic: Critic | None = None

        def frozen_model(where: str | Path) -> ScoredModel:
            return ScoredModel(where, train, temperature, policy.device, frozen=True)

        if REFERENCE in objective.needed_columns:
            assert objective.reference is not None, "the recipe has checked it"
            decay = objective.reference.decay
            self.frozen[REFERENCE] = frozen_model(path if decay is not None else local_copy(objective.reference.path))
            if decay is not None:
                self._average = MovingAverage(policy, self.frozen[REFERENCE], decay)
        if objective.teacher and objective.teacher.place == "trainer":
            (path_of_teacher,) = objective.teacher.paths
            self.frozen[TEACHER] = frozen_model(local_copy(path_of_teacher))
        if SAMPLED in objective.needed_columns or train.ratio_parts_every:
            self._sampling = SamplingVersions(policy, frozen_model(path), oldest_age, version)
        if train.critic is not None:
            assert advantage is not None, "the recipe has checked it"
            self.critic = Critic(path, train, train.critic, advantage, policy.device, version, resumed)
        if resumed:
            policy.load_beside(path)
            if self._average:
                self._average.reload()

    @torch.no_grad()
    def columns(
        self, minibatches: Sequence[Minibatch[MicroBatch]], version: int, takes_apart: bool
    ) -> list[list[RankColumns]]:
        """Compute what ranks fill, before the updates of a step: for each micro-batch of each minibatch. Collective.

        The first minibatch has no column of the proximal policy: it meets the weights from before the step anyway.

        Args:
            version: of the policy.
            takes_apart: the step measures the parts of the ratio.
        """
        found: list[list[RankColumns]] = [[{} for _ in range(len(m.micro_batches))] for m in minibatches]
        for name, model in self.frozen.items():
            for own, batch in _pairs(found, minibatches):
                self._score(name, model, own, batch)
        if self._sampling and (SAMPLED in self._objective.needed_columns or takes_apart):
            scored = self._sampling.score(version, [batch for _, batch in _pairs(found, minibatches)])
            for (own, _), column in zip(_pairs(found, minibatches), scored, strict=True):
                own[SAMPLED] = column
        teacher = self._objective.teacher
        if teacher and teacher.place == "engine":
            for own, batch in _pairs(found, minibatches):
                own.update(_given(teacher, batch, self._policy.device, self._policy.model.config.vocab_size))
        penalty = self._objective.active_reference
        if penalty and penalty.place == "reward":
            for own, batch in _pairs(found, minibatches):
                given = place_batch(batch, self._policy.device).arrays
                behavior = given["behavior_logprobs"]
                own["advantages"] = penalized(given["advantages"], behavior, own[REFERENCE], penalty)
        if self.critic is not None:
            self.critic.estimate(minibatches, found)
        if PROXIMAL in self._objective.needed_columns or takes_apart:
            for own, batch in _pairs(found[1:], minibatches[1:]):
                self._score(PROXIMAL, self._policy, own, batch)
        return found

    def _score(self, name: str, model: ScoredModel, own: RankColumns, batch: MicroBatch) -> None:
        """Fill the column `name` with the log-probabilities of a model, (N,), or a teacher's likeliest tokens."""
        teacher = self._objective.teacher
        if name == TEACHER and teacher and teacher.top_k:
            vocab = self._policy.model.config.vocab_size
            own[TOP_IDS], own[TOP_LOGPROBS] = model.top_logprobs(batch, teacher.top_k, vocab)
        else:
            own[name] = model.score_loss_tokens(batch)

    @property
    def score_all(self) -> bool:
        """Return whether some model scores all minibatches, before the policy does."""
        return bool(self.frozen or self._sampling or self.critic)

    def keep(self, version: int) -> None:
        """Keep the policy's weights, which are about to change, as those of `version`."""
        if self._sampling:
            self._sampling.keep(version)

    def follow(self) -> None:
        """Let the moving average follow the policy after a step."""
        if self._average:
            self._average.update()


def _given(teacher: Teacher, batch: MicroBatch, device: torch.device, vocab: int) -> RankColumns:
    """Return what the teacher's engine said of a micro-batch; a rank that only keeps step has no token.

    Models of one family pad their vocabulary to different sizes: the policy has no token from `vocab` on.
    """
    found = {}
    for name in teacher.columns:
        dtype = torch.int64 if name == TOP_IDS else torch.float32
        nothing = torch.zeros((0, teacher.top_k) if teacher.top_k else 0)
        column = torch.from_numpy(batch.teacher[name]) if batch.teacher else nothing
        found[name] = column.to(device, dtype)
    if teacher.top_k:
        is_padding = found[TOP_IDS] >= vocab
        found[TOP_IDS].masked_fill_(is_padding, 0)
        found[TOP_LOGPROBS].masked_fill_(is_padding, NO_TOKEN)
    return found


def _pairs(
    found: Sequence[Sequence[RankColumns]], minibatches: Sequence[Minibatch[MicroBatch]]
) -> Iterator[tuple[RankColumns, MicroBatch]]:
    """Yield each micro-batch with its columns, one minibatch after the other."""
    for of_minibatch, minibatch in zip(found, minibatches, strict=True):
        yield from zip(of_minibatch, minibatch.micro_batches, strict=True)
