"""Hold other versions of the policy beside it: those that sampled the tokens of a step, and a moving average.

    policy ─ before each update ─► shards of this rank in host memory ─► checkpoints (ShardedModel.beside)
                                          └─► one version after the other into one frozen model ─► log-probabilities

A token of age 0 was sampled by the policy itself, so what is kept are the versions of ages 1 to the oldest.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from arl.config.reference_section import AVERAGE
from arl.train.micro_batch import MicroBatch
from arl.train.scored_model import ScoredModel
from arl.train.sharded_model import ShardedModel


class MovingAverage:
    """Keep a frozen model at average = decay · average + (1 − decay) · policy. The average itself is float32."""

    def __init__(self, policy: ShardedModel, model: ScoredModel, decay: float) -> None:
        self._policy = policy
        self._model = model
        self._decay = decay
        policy.beside[AVERAGE] = policy.in_host_memory(torch.float32)

    def update(self) -> None:
        """Follow the policy after a step."""
        new = self._policy.in_host_memory(torch.float32)
        old = self._policy.beside[AVERAGE]
        self._policy.beside[AVERAGE] = {name: old[name].lerp(new[name], 1 - self._decay) for name in new}
        self.reload()

    def reload(self) -> None:
        """Give the frozen model the average."""
        self._model.load(self._policy.beside[AVERAGE])


class SamplingVersions:
    """Keep the versions that may have sampled the tokens of a step.

    Args:
        model: computes with one of them after the other.
        oldest: age of a token, versions.
        version: of the policy. What is kept of earlier ones is empty until a checkpoint is read.
    """

    def __init__(self, policy: ShardedModel, model: ScoredModel, oldest: int, version: int) -> None:
        self._policy = policy
        self._model = model
        self._oldest = oldest
        for earlier in range(max(0, version - oldest), version):
            self.keep(earlier)

    def keep(self, version: int) -> None:
        """Keep the policy's weights as those of `version`, and forget what is too old for the step after it."""
        self._policy.beside.pop(_name(version - self._oldest), None)
        if self._oldest:
            self._policy.beside[_name(version)] = self._policy.in_host_memory(self._policy.dtype)

    def score(self, version: int, packs: Sequence[MicroBatch]) -> list[Tensor]:
        """Compute the log-probability of each loss token under the version that sampled it, (N,) a pack. Collective.

        A pack is scored by a version if it has a token of it on some rank, because ranks compute in step.

        Args:
            version: of the policy.
            packs: this rank's micro-batches of a step; every rank has as many.
        """
        device = self._policy.device
        ages = [torch.from_numpy(version - pack.columns["policy_versions"]).to(device, torch.int64) for pack in packs]
        found = torch.zeros(len(packs), self._oldest + 1, device=device)
        for row, of_pack in zip(found, ages, strict=True):
            row[of_pack] = 1  # out of range if the gate let through an older token
        dist.all_reduce(found, dist.ReduceOp.MAX)
        columns = [torch.zeros(len(of_pack), device=device) for of_pack in ages]
        for age, has_tokens in enumerate(found.bool().T.tolist()):
            if age and any(has_tokens):
                self._model.load(self._policy.beside[_name(version - age)])
            model = self._model if age else self._policy
            for i, is_scored in enumerate(has_tokens):
                if is_scored:
                    columns[i] = model.score_loss_tokens(packs[i]).where(ages[i] == age, columns[i])
        return columns


def _name(version: int) -> str:
    return f"version_{version}"
