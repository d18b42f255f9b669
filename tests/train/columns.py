"""Columns of a loss, of which a test gives only those that matter to it."""

import numpy as np
import torch
from torch import Tensor

from arl.train.algorithms.objective import TokenColumns
from arl.train.packing import LossSequence
from arl.types import MetricValue


def loss_sequence(
    token_ids: np.ndarray, loss_at: np.ndarray, advantages: np.ndarray, behavior: np.ndarray | None = None
) -> LossSequence:
    """Every loss token is of version 0, and of logprob 0 unless said otherwise."""
    columns = {
        "behavior_logprobs": np.zeros(len(loss_at), np.float32) if behavior is None else behavior,
        "policy_versions": np.zeros(len(loss_at), np.int32),
        "advantages": advantages,
    }
    return LossSequence(token_ids, loss_at, columns)


def token_columns(
    current: Tensor,
    behavior: Tensor,
    advantages: Tensor,
    *,
    proximal: Tensor | None = None,
    reference: Tensor | None = None,
    teacher: Tensor | None = None,
    top: tuple[Tensor, Tensor] | None = None,
    entropy: Tensor | None = None,
    sequences: Tensor | None = None,
    policy_versions: Tensor | None = None,
    version: int = 0,
) -> TokenColumns:
    """Each token is of a sequence of its own and of version 0, unless said otherwise. `top`: of policy and teacher."""
    tokens = torch.arange(len(current))
    return TokenColumns(
        current_logprobs=current,
        entropy=torch.ones_like(current).detach() if entropy is None else entropy,
        behavior_logprobs=behavior,
        proximal_logprobs=proximal,
        reference_logprobs=reference,
        teacher_logprobs=teacher,
        top_logprobs=top[0] if top else None,
        teacher_top_logprobs=top[1] if top else None,
        advantages=advantages,
        policy_versions=torch.zeros_like(tokens) if policy_versions is None else policy_versions,
        sequences=tokens if sequences is None else sequences,
        version=version,
    )


def comparable(value: MetricValue) -> float | list[float]:
    """Take −1 for None, which pytest.approx does not compare."""
    return [-1.0 if x is None else x for x in value] if isinstance(value, list) else value
