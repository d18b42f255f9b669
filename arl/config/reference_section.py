"""Define the section `reference` of every objective: a frozen model that the policy is kept near."""

from typing import Literal, Self

from pydantic import model_validator

from arl.config.section import FilePath, FractionBelowOne, NonNegativeFloat, Section

BASE = "base"
AVERAGE = "average"


class Reference(Section):
    """Penalize the divergence of the policy from a reference, estimated at each loss token (docs/algorithms.md)."""

    path: FilePath = BASE
    """`base`: the model that the run began with. `average`: a moving average of the policy. Otherwise a directory, such
    as a checkpoint's, or a Hugging Face name, with the policy's vocabulary."""
    coefficient: NonNegativeFloat
    """β. 0: nothing is loaded."""
    kl: Literal["k1", "k2", "k3", "unbiased"] = "k3"
    """The estimator. unbiased: k3 times π_θ / π_behav, whose gradient is that of the divergence however old a token
    is."""
    place: Literal["loss", "reward"] = "loss"
    """loss: β k is added to the loss of each token. reward: β k of the policy that sampled, a constant, is subtracted
    from its advantage."""
    decay: FractionBelowOne | None = None
    """With path average: after each step, average = decay · average + (1 − decay) · policy."""

    @model_validator(mode="after")
    def _reads_what_is_given(self) -> Self:
        if (self.path == AVERAGE) != (self.decay is not None):
            raise ValueError(
                f"objective.reference.decay {self.decay}: is of a moving average, and path is {self.path}; give it "
                f"with path {AVERAGE}, and only there"
            )
        if self.place == "reward" and self.kl == "unbiased":
            raise ValueError(
                "objective.reference.kl unbiased: is about a gradient, and with place reward the estimate has none; "
                "choose k1, k2 or k3"
            )
        return self

    @property
    def is_elsewhere(self) -> bool:
        """Return whether `path` names a model that the run does not make."""
        return self.path not in (BASE, AVERAGE)
