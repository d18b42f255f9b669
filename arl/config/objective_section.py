"""Define the recipe's sections `objective` and `advantage`: what the trainer maximizes.

Both are chosen by `kind`. What a class declares here is what the rest of arl asks it, without importing torch; what it
computes is defined in arl/train/algorithms.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple, get_args

from arl.config.chosen_section import ChosenSection

COLUMNS = ("proximal_logprobs", "reference_logprobs", "values")  # what an implementation may ask for
FILLED = ("proximal_logprobs",)  # what the trainer computes today
Reduction = Literal["mean", "max", "effective_sample_size"]  # the last is (Σ x)² / (n Σ x²)


class Statistic(NamedTuple):
    """Say how a metric follows from a value that the loss returns for each token.

    Statistic("ratio", "mean") is the mean of `ratio` over the step's computed loss tokens, and with `by_age` a list of
    its means over those of each age.
    """

    value: str  # the name under which the loss returns it
    reduction: Reduction
    by_age: bool = False  # one number for each of arl.metrics.names.AGE_BUCKETS; not for a maximum


class ObjectiveSection(ChosenSection):
    """Declare an objective and its settings; arl.train.algorithms.objective defines what it computes."""

    SECTION: ClassVar[str] = "objective"
    DEFAULT: ClassVar[str] = "decoupled_ppo"
    BUILT_IN: ClassVar[Mapping[str, str]] = {
        "decoupled_ppo": "arl.train.algorithms.decoupled_ppo:DecoupledPPO",
        "ppo": "arl.train.algorithms.ppo:PPO",
        "gspo": "arl.train.algorithms.gspo:GSPO",
    }
    BASE: ClassVar[str] = "arl.train.algorithms.objective:Objective"
    EXAMPLE: ClassVar[str] = "arl/train/algorithms/ppo.py"

    scope: ClassVar[Literal["token", "sequence"]]
    """token: the loss is a sum over tokens, and may be given any part of them. sequence: it needs all tokens of a
    trajectory at once; then no head kernel can make the gradient in the forward."""
    normalizer: ClassVar[Literal["tokens", "sequences"]]
    """What the summed loss is divided by: the minibatch's loss tokens, or its trajectories with loss tokens."""
    columns: ClassVar[tuple[str, ...]]
    """Columns it reads beside current, behavior, advantages and versions: a part of COLUMNS."""
    metrics: ClassVar[Mapping[str, Reduction | Statistic]]
    """Name of each metric, and how it follows from what the loss returns for each computed loss token. A reduction
    alone is of the value that has the metric's name. A metric that arl does not define in arl/metrics/names.py begins
    with `objective/`."""
    zero_advantage_is_zero_gradient: ClassVar[bool]
    """True if a trajectory whose advantages are all 0 has no gradient; only then may the packer leave it out.
    Where that depends on settings, override `leaves_out_zeros`."""

    try_next: ClassVar[tuple[str, ...]] = ()
    """Hints at the end of a run: what to compare it with."""

    @property
    def cheaper(self) -> str:
        """Return a setting with which a step takes less time; empty if there is none."""
        return ""

    @property
    def leaves_out_zeros(self) -> bool:
        """Return whether, with these settings, a trajectory whose advantages are all 0 has no gradient."""
        return self.zero_advantage_is_zero_gradient

    @property
    def needed_columns(self) -> tuple[str, ...]:
        """Return the columns that these settings need."""
        return self.columns

    @property
    def statistics(self) -> dict[str, Statistic]:
        """Return how each metric of these settings follows from what the loss returns."""
        found = {}
        for name, declared in self.metrics.items():
            found[name] = declared if isinstance(declared, Statistic) else Statistic(name, declared)
        return found

    def refuse_impossible(self) -> None:
        _refuse_columns(self, self.needed_columns, FILLED)
        for name, statistic in self.statistics.items():
            place = f"objective.kind {self.kind!r}: metrics[{name!r}]"
            if statistic.reduction not in get_args(Reduction):
                raise ValueError(
                    f"{place} is {statistic.reduction!r}, and must be 'mean', 'max' or 'effective_sample_size', "
                    f"alone or in a Statistic; see {self.EXAMPLE} for an example"
                )
            if statistic.by_age and statistic.reduction == "max":
                raise ValueError(f"{place}: a maximum is not kept by age; choose 'mean', or leave by_age out")


class AdvantageSection(ChosenSection):
    """Declare an advantage and its settings; arl.train.algorithms.advantage defines what it computes."""

    SECTION: ClassVar[str] = "advantage"
    DEFAULT: ClassVar[str] = "grpo"
    BUILT_IN: ClassVar[Mapping[str, str]] = {
        "grpo": "arl.train.algorithms.advantage:GRPO",
        "rloo": "arl.train.algorithms.advantage:RLOO",
        "batch_norm": "arl.train.algorithms.advantage:BatchNorm",
    }
    BASE: ClassVar[str] = "arl.train.algorithms.advantage:Advantage"
    EXAMPLE: ClassVar[str] = "arl/train/algorithms/advantage.py"

    per: ClassVar[Literal["trajectory", "token"]]
    """trajectory: it gives one number for each trajectory. token: one for each loss token."""
    columns: ClassVar[tuple[str, ...]]
    """("values",) if it reads them, () if rewards and groups are enough."""
    smallest_group: ClassVar[int]
    """The least rollout.group_size with which it is not 0 everywhere."""

    def refuse_impossible(self) -> None:
        _refuse_columns(self, self.columns, ())


def _refuse_columns(section: ChosenSection, needed: tuple[str, ...], filled: tuple[str, ...]) -> None:
    place = f"{section.SECTION}.kind {section.kind!r}"
    for column in needed:
        if column not in COLUMNS:
            raise ValueError(f"{place}: there is no column {column!r}; there are {', '.join(COLUMNS)}")
        if column not in filled:
            raise ValueError(
                f"{place}: it reads the column {column!r}, which nothing computes yet; choose one that does not need it"
            )
