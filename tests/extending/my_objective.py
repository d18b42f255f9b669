"""What a user writes to add an objective: REINFORCE with a penalty for leaving the uniform policy."""

import math
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from arl.config.objective_section import Reduction, Statistic
from arl.config.section import Positive, PositiveFloat
from arl.train.algorithms.objective import Objective, TokenColumns


class Reinforce(Objective):
    """−A u + β k2, u = exp(current − behavior), k2 = ½ (current + log V)² an estimate of the KL to uniform."""

    scope = "token"
    columns: ClassVar[tuple[str, ...]] = ()
    metrics: ClassVar[Mapping[str, Reduction | Statistic]] = {
        "objective/penalty": "mean",
        "objective/penalty_max": Statistic("objective/penalty", "max"),
        "objective/penalty_by_age": Statistic("objective/penalty", "mean", by_age=True),
    }
    zero_advantage_is_zero_gradient = False  # the penalty has a gradient where all rewards of a group are equal

    penalty: PositiveFloat = 0.1
    """β."""
    vocabulary: Positive = 17
    """V."""

    def loss(self, tokens: TokenColumns) -> tuple[Tensor, dict[str, Tensor]]:
        log_ratio = tokens.current_logprobs - tokens.behavior_logprobs
        penalty = (tokens.current_logprobs + math.log(self.vocabulary)).square() / 2
        loss = self.penalty * penalty - log_ratio.exp() * tokens.advantages
        return loss, {"objective/penalty": penalty.detach()}


class WithReference(Reinforce):
    """Asks for a column that nothing computes yet."""

    columns = ("reference_logprobs",)

    def loss(self, tokens: TokenColumns) -> tuple[Tensor, dict[str, Tensor]]:
        assert tokens.reference_logprobs is not None
        penalty = (tokens.current_logprobs - tokens.reference_logprobs).square() / 2
        return penalty, {"objective/penalty": penalty.detach()}


class WithoutScope(Objective):
    """Lacks the declaration `scope`."""

    columns: ClassVar[tuple[str, ...]] = ()
    metrics: ClassVar[Mapping[str, Reduction | Statistic]] = {}
    zero_advantage_is_zero_gradient = True

    def loss(self, tokens: TokenColumns) -> tuple[Tensor, dict[str, Tensor]]:
        return tokens.current_logprobs, {}


class LogsAnotherName(Reinforce):
    """Declares objective/penalty, and returns it under another name."""

    def loss(self, tokens: TokenColumns) -> tuple[Tensor, dict[str, Tensor]]:
        loss, metrics = super().loss(tokens)
        return loss, {"objective/forfeit": metrics["objective/penalty"]}
