"""Define the objective seam: a loss as a pure function of per-token columns.

Torch is imported only where a loss is computed.

    Shard ─► forward ─► TokenColumns ─► Objective.total ─► (loss of each token, values of each token by name) ─► metrics
                                                                   │ summed, and divided as `normalizer` says
                                                                   └► backward

Shapes: N loss tokens, in the order of their scores in the pack.
"""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from arl.config.objective_section import ObjectiveSection
from arl.train.algorithms.distillation import divergence, taught
from arl.train.algorithms.terms import kl_terms

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenColumns:
    """Hold what a loss may read of N loss tokens. `current_logprobs`, `entropy` and `top_logprobs` carry a gradient.

    Columns that the objective does not ask for (`ObjectiveSection.columns`) are None.
    """

    current_logprobs: "Tensor"  # (N,) float32, log π_θ of each token
    entropy: "Tensor"  # (N,) float32, −Σ_v π_θ(v) log π_θ(v) where each token was sampled
    behavior_logprobs: "Tensor"  # (N,) float32, log π_behav, recorded by the engine that sampled the token
    advantages: "Tensor"  # (N,) float32
    policy_versions: "Tensor"  # (N,) int64, the version that sampled each token, ≤ version
    sequences: "Tensor"  # (N,) int64 in [0, N), the trajectory of each token
    version: int  # the trainer's version v before the step
    progress: float = 1.0  # share of the step's updates that π_θ has made
    proximal_logprobs: "Tensor | None" = None  # (N,) float32, log π of version v
    sampled_logprobs: "Tensor | None" = None  # (N,) float32, log π of the version that sampled each token
    reference_logprobs: "Tensor | None" = None  # (N,) float32, log π of a frozen model
    teacher_logprobs: "Tensor | None" = None  # (N,) float32, log π of a teacher
    teacher_top_ids: "Tensor | None" = None  # (N, k) int64, the teacher's likeliest tokens
    teacher_top_logprobs: "Tensor | None" = None  # (N, k) float32, log π of the teacher
    top_logprobs: "Tensor | None" = None  # (N, k) float32, log π_θ of the same tokens
    values: "Tensor | None" = None  # (N,) float32, a critic's values


class Objective(ObjectiveSection):
    """Compute a loss. The fields of a subclass are its settings, in the recipe's section `objective`.

    A worked example, chosen by `objective: {kind: my_objective:Reinforce}`:

        class Reinforce(Objective):
            '''REINFORCE with a bonus for entropy along the sample, −(A − β log π_θ) log π_θ.'''

            scope = "token"
            columns = ()
            metrics = {"objective/bonus": "mean"}
            zero_advantage_is_zero_gradient = False  # the bonus has a gradient in groups of equal rewards

            bonus: PositiveFloat = 0.01
            '''β.'''

            def loss(self, tokens):
                logprobs = tokens.current_logprobs
                bonus = -self.bonus * logprobs.detach()
                return -(tokens.advantages + bonus) * logprobs, {"objective/bonus": bonus}
    """

    def total(self, tokens: TokenColumns) -> "tuple[Tensor, dict[str, Tensor]]":
        """Compute the loss of each token with all terms that the settings ask for; see `loss`."""
        if self.teacher:
            advantages = taught(tokens.advantages, tokens.current_logprobs, tokens.teacher_logprobs, self.teacher)
            tokens = replace(tokens, advantages=advantages)
        loss, values = self.loss(tokens)
        if self.entropy_coefficient:
            loss = loss - self.entropy_coefficient * tokens.entropy
        if self.active_reference:
            columns = (tokens.current_logprobs, tokens.reference_logprobs, tokens.behavior_logprobs)
            if self.active_reference.place == "loss":
                loss = loss + self.active_reference.coefficient * kl_terms(self.active_reference.kl, *columns)
            values = values | {"kl_reference": kl_terms("k3", *columns).detach()}
        if self.teacher and self.teacher.top_k:
            assert tokens.top_logprobs is not None and tokens.teacher_top_logprobs is not None, "the learner fills them"
            apart = divergence(self.teacher.kl, tokens.top_logprobs, tokens.teacher_top_logprobs)
            loss = loss + self.teacher.coefficient * apart
            values = values | {"kl_teacher": apart.detach()}
        elif self.teacher:
            columns = (tokens.current_logprobs, tokens.teacher_logprobs, tokens.behavior_logprobs)
            values = values | {"kl_teacher": kl_terms("k3", *columns).detach()}
        if self.narrows:
            loss = loss.where(values["is_kept"], 0.0)  # no term of a token counts that is not counted
        return loss, values

    @abstractmethod
    def loss(self, tokens: TokenColumns) -> "tuple[Tensor, dict[str, Tensor]]":
        """Compute the loss of some loss tokens.

        With scope token it is called for parts of a micro-batch, one after the other; with scope sequence once, with
        all tokens of every trajectory in the micro-batch. There may be no token at all.

        Returns:
            The loss of each token, (N,), with gradient, which the learner sums as `normalizer` says; and by name the
            values that `metrics` is made of, (N,) each, without gradient. What is of a whole trajectory stands at each
            of its tokens, so that with normalizer sequence_means it counts once.
        """
