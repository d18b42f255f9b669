"""Columns of a loss, of which a test gives only those that matter to it."""

import torch
from torch import Tensor

from arl.train.algorithms.objective import TokenColumns
from arl.types import MetricValue


def token_columns(
    current: Tensor,
    behavior: Tensor,
    advantages: Tensor,
    *,
    proximal: Tensor | None = None,
    entropy: Tensor | None = None,
    sequences: Tensor | None = None,
    policy_versions: Tensor | None = None,
    version: int = 0,
) -> TokenColumns:
    """Each token is of a sequence of its own and of version 0, unless said otherwise."""
    tokens = torch.arange(len(current))
    return TokenColumns(
        current_logprobs=current,
        entropy=torch.ones_like(current).detach() if entropy is None else entropy,
        behavior_logprobs=behavior,
        proximal_logprobs=proximal,
        advantages=advantages,
        policy_versions=torch.zeros_like(tokens) if policy_versions is None else policy_versions,
        sequences=tokens if sequences is None else sequences,
        version=version,
    )


def comparable(value: MetricValue) -> float | list[float]:
    """Take −1 for None, which pytest.approx does not compare."""
    return [-1.0 if x is None else x for x in value] if isinstance(value, list) else value
