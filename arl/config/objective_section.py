"""Define the recipe's sections `objective` and `advantage`: what the trainer maximizes.

    objective: {kind: gspo, clip_low: 3e-4, …} ─► the class that `gspo` names ─► its fields are checked, its code runs

A kind is a short name from the section's table of built-ins, or `module:attribute` for user code. The class is imported
when the recipe is read, by its name, so that arl.config imports nothing of the rooms above it. What a class declares
here is what the rest of arl asks it, without importing torch; what it computes is defined in arl/train/algorithms.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args

from pydantic import ModelWrapValidatorHandler, model_validator

from arl.config.imports import check_seam, import_attribute
from arl.config.reference_section import BASE, Reference
from arl.config.section import NonNegativeFloat, Section, Tokens
from arl.config.teacher_section import TEACHER, Teacher
from arl.errors import RecipeError

# What the trainer computes.
COLUMNS = ("proximal_logprobs", "sampled_logprobs", "reference_logprobs", TEACHER)
SAMPLED = "sampled_logprobs"
REFERENCE = "reference_logprobs"
ESS = "behavior_weight/effective_sample_size"  # a metric of objectives with behavior weights; train.scale_by_ess
Normalizer = Literal["tokens", "sequences", "sequence_means", "constant"]
Reduction = Literal["mean", "max", "effective_sample_size"]  # the last is (Σ x)² / (n Σ x²)


class ChosenSection(Section):
    """Stand for a section that is replaced by an object of the class that its `kind` names.

    A direct subclass is one seam: its ClassVars without a value are what a class must declare. The class that `BASE`
    names inherits from it and adds the abstract methods. Subclasses of that are the implementations.
    """

    kind: str = ""
    """Short name of a built-in, or `module:attribute`."""

    SECTION: ClassVar[str]  # its name in the recipe
    DEFAULT: ClassVar[str]  # a short name
    BUILT_IN: ClassVar[Mapping[str, str]]  # short name -> module:attribute
    BASE: ClassVar[str]  # module:attribute of the class that implementations inherit from
    EXAMPLE: ClassVar[str]  # the file of the built-in that is nearest to what a user writes

    @model_validator(mode="wrap")
    @classmethod
    def _replace_by_the_chosen(cls, given: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if ChosenSection not in cls.__bases__:
            return handler(given)  # an implementation checks its own fields
        if isinstance(given, cls):
            return given
        fields = {"kind": given} if isinstance(given, str) else given
        if not isinstance(fields, dict):
            raise ValueError(f"{cls.SECTION} {given!r}: give a section with `kind` and the fields of that kind")
        implementation = cls.implementation(fields)
        chosen = implementation.model_validate({"kind": cls.DEFAULT} | fields)
        chosen.validate_settings()
        return chosen

    @classmethod
    def implementation(cls, fields: Mapping[str, Any]) -> type[Self]:
        """Import the class that `fields["kind"]` names.

        Raises:
            RecipeError: an unknown name, or a class that lacks a part; it says the rule and the nearest example.
        """
        kind = fields.get("kind", cls.DEFAULT)
        field = f"{cls.SECTION}.kind"
        what = f"{field} {kind!r}"
        base = import_attribute(cls.BASE, field)
        found = import_attribute(str(kind), field, cls.BUILT_IN)
        if not isinstance(found, type) or not issubclass(found, base):
            raise RecipeError(f"{what}: must be a subclass of {cls.BASE}; see {cls.EXAMPLE} for a complete one")
        check_seam(found, what, base, cls.EXAMPLE)
        return found

    def validate_settings(self) -> None:
        """Raise ValueError where these settings can never work, whatever the rest of the recipe says."""


class Statistic(NamedTuple):
    """Say how a metric follows from a value that the loss returns for each token.

    Statistic("ratio", "mean") is the mean of `ratio` over the step's computed loss tokens, and with `by_age` a list of
    its means over those of each age.
    """

    value: str  # the name under which the loss returns it
    reduction: Reduction
    by_age: bool = False  # one number for each of arl.metrics.names.AGE_BUCKETS; not for a maximum


REFERENCE_METRICS = {
    "kl/reference": Statistic("kl_reference", "mean"),
    "by_age/kl_reference": Statistic("kl_reference", "mean", by_age=True),
}
TEACHER_METRICS = {
    "kl/teacher": Statistic("kl_teacher", "mean"),
    "by_age/kl_teacher": Statistic("kl_teacher", "mean", by_age=True),
}


class ObjectiveSection(ChosenSection):
    """Declare an objective and its settings (arl.train.algorithms.objective)."""

    SECTION: ClassVar[str] = "objective"
    DEFAULT: ClassVar[str] = "decoupled_ppo"
    BUILT_IN: ClassVar[Mapping[str, str]] = {
        "decoupled_ppo": "arl.train.algorithms.decoupled_ppo:DecoupledPPO",
        "ppo": "arl.train.algorithms.ppo:PPO",
        "gspo": "arl.train.algorithms.gspo:GSPO",
        "cispo": "arl.train.algorithms.cispo:CISPO",
        "sapo": "arl.train.algorithms.sapo:SAPO",
        "m2po": "arl.train.algorithms.m2po:M2PO",
    }
    BASE: ClassVar[str] = "arl.train.algorithms.objective:Objective"
    EXAMPLE: ClassVar[str] = "arl/train/algorithms/ppo.py"

    scope: ClassVar[Literal["token", "sequence"]]
    """token: the loss of a token depends on it alone, and any part of them may be given. sequence: it needs all tokens
    of a trajectory at once; then no head kernel can make the gradient in the forward. Where that depends on settings,
    override `needs_sequences`."""
    columns: ClassVar[tuple[str, ...]]
    """Columns it reads beside current, behavior, advantages and versions: a part of COLUMNS."""
    metrics: ClassVar[Mapping[str, Reduction | Statistic]]
    """Name of each metric, and how it follows from what the loss returns for each computed loss token. A reduction
    alone is of the value that has the metric's name. A metric that arl does not define in arl/metrics/names.py begins
    with `objective/`."""
    zero_advantage_is_zero_gradient: ClassVar[bool]
    """True if a trajectory whose advantages are all 0 has no gradient; only then may the packer leave it out.
    Where that depends on settings, override `leaves_out_zeros`."""

    normalizer: Normalizer = "tokens"
    """What a minibatch's loss is, with S trajectories and T loss tokens on all ranks. tokens: the sum over tokens / T.
    sequences: / S. sequence_means: the mean over trajectories of the means over their tokens. constant: / (S · L)."""
    constant: Tokens | None = None
    """L of normalizer constant; Dr. GRPO (arXiv 2503.20783) takes rollout.max_new_tokens."""
    entropy_coefficient: NonNegativeFloat = 0.0
    """β: β times the entropy (nats) of each loss token is subtracted from its loss. Published runs that use it take
    1e-4 to 1e-2. Above 0, groups of equal rewards are trained too."""
    reference: Reference | None = None
    teacher: Teacher | None = None

    @model_validator(mode="after")
    def _has_its_constant(self) -> Self:
        if (self.normalizer == "constant") != (self.constant is not None):
            raise ValueError(
                f"objective.constant {self.constant}: is the length by which normalizer constant divides, and "
                f"normalizer is {self.normalizer}; give both or neither"
            )
        return self

    @property
    def needs_sequences(self) -> bool:
        """Return whether, with these settings, the loss needs all tokens of a trajectory at once."""
        return self.scope == "sequence"

    @property
    def narrows(self) -> bool:
        """Return whether tokens that the loss leaves out are not counted; then it returns the value `is_kept`."""
        return False

    @property
    def leaves_out_zeros(self) -> bool:
        """Return whether, with these settings, a trajectory whose advantages are all 0 has no gradient."""
        has_term = bool(self.entropy_coefficient or self.active_reference or self.teacher)
        return self.zero_advantage_is_zero_gradient and not has_term

    @property
    def needed_columns(self) -> tuple[str, ...]:
        """Return the columns that these settings need."""
        of_terms = [*([REFERENCE] if self.active_reference else []), *(self.teacher.columns if self.teacher else [])]
        return tuple(dict.fromkeys([*self.columns, *of_terms]))

    @property
    def active_reference(self) -> Reference | None:
        """Return the section `reference` if the loss or the reward has a term of it."""
        return self.reference if self.reference and self.reference.coefficient else None

    @property
    def learns_from_teacher_alone(self) -> bool:
        """Return whether the advantages of rewards are not used."""
        return self.teacher is not None and self.teacher.alone

    def located(self, base: str) -> Self:
        """Return the section with the directory `base`, of the run's version 0, in the place of that word."""
        if self.reference is None or self.reference.path != BASE:
            return self
        return self.model_copy(update={"reference": self.reference.model_copy(update={"path": base})})

    @property
    def statistics(self) -> dict[str, Statistic]:
        """Return how each metric of these settings follows from what the loss returns."""
        found = {}
        for name, declared in self.metrics.items():
            found[name] = declared if isinstance(declared, Statistic) else Statistic(name, declared)
        found |= REFERENCE_METRICS if self.active_reference else {}
        return found | (TEACHER_METRICS if self.teacher else {})

    def validate_settings(self) -> None:
        _validate_columns(self, self.columns, COLUMNS)
        if TEACHER in self.columns and (self.teacher is None or self.teacher.top_k):
            raise ValueError(
                f"objective.kind {self.kind!r}: it reads the column {TEACHER!r}; say in objective.teacher of which "
                "model, with top_k 0"
            )
        if self.teacher and not self.teacher.top_k and self.scope == "sequence":
            raise ValueError(
                f"objective.teacher.top_k 0: an advantage that differs from token to token, and objective.kind "
                f"{self.kind} takes one for a whole trajectory; give top_k, such as 16"
            )
        if REFERENCE in self.needed_columns and self.reference is None:
            raise ValueError(
                f"objective.kind {self.kind!r}: it reads the column {REFERENCE!r}; say in objective.reference of which "
                "model, with coefficient 0 if it needs no further term"
            )
        if self.active_reference and self.active_reference.place == "reward" and self.scope == "sequence":
            raise ValueError(
                f"objective.reference.place reward: differs from token to token, and objective.kind {self.kind} takes "
                "one advantage for a whole trajectory; choose place loss"
            )
        if self.active_reference and self.active_reference.place == "reward" and self.learns_from_teacher_alone:
            raise ValueError(
                "objective.reference.place reward: objective.teacher.alone uses no rewards; choose place loss, or "
                "leave one of both out"
            )
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
    """Declare an advantage and its settings (arl.train.algorithms.advantage)."""

    SECTION: ClassVar[str] = "advantage"
    DEFAULT: ClassVar[str] = "grpo"
    BUILT_IN: ClassVar[Mapping[str, str]] = {
        "grpo": "arl.train.algorithms.advantage:GRPO",
        "rloo": "arl.train.algorithms.advantage:RLOO",
        "centered": "arl.train.algorithms.advantage:Centered",
        "reinforce_plus_plus": "arl.train.algorithms.advantage:ReinforcePlusPlus",
        "batch_norm": "arl.train.algorithms.advantage:BatchNorm",
        "gae": "arl.train.algorithms.gae:GAE",
    }
    BASE: ClassVar[str] = "arl.train.algorithms.advantage:Advantage"
    EXAMPLE: ClassVar[str] = "arl/train/algorithms/advantage.py"

    per: ClassVar[Literal["trajectory", "token"]]
    """trajectory: it gives one number for each trajectory. token: one for each loss token."""
    columns: ClassVar[tuple[str, ...]]
    """("values",) if it reads them: then ranks compute it, of each micro-batch, and each trajectory is an episode and a
    group of its own. () if rewards and groups are enough."""
    smallest_group: ClassVar[int]
    """The least rollout.group_size with which it is not 0 everywhere."""

    @property
    def is_whitened(self) -> bool:
        """Return whether ranks, if they compute it, whiten it over the step's loss tokens."""
        return False

    def validate_settings(self) -> None:
        _validate_columns(self, self.columns, ("values",))


def _validate_columns(section: ChosenSection, needed: tuple[str, ...], filled: tuple[str, ...]) -> None:
    for column in needed:
        if column not in filled:
            place = f"{section.SECTION}.kind {section.kind!r}"
            raise ValueError(
                f"{place}: it reads the column {column!r}, which nothing computes; choose one that does not need it"
            )
