"""Define the recipe's section about rollouts: what is generated, and how far it may run ahead of training."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from arl.config.section import (
    FilePath,
    FractionBelowOne,
    NonNegative,
    Positive,
    PositiveFloat,
    Section,
    Tokens,
)

UNREACHED_AGE = 10**9  # versions: more than any run makes, so it bounds nothing
TOOL_LIMITS = ("max_turns", "tool_seconds", "tool_output")
VERSIONS_AHEAD = 4  # of the engines, at the start of a step; only where no bound says how many


class LagFile(Section):
    """Read lags from one file."""

    dist: FilePath | None = None
    """JSON or YAML file of lag: weight, like {0: 0.5, 2: 0.5}, from which each group draws its lag."""
    trace: FilePath | None = None
    """Directory of a finished run of the same model, data and batch; each group gets the lag of its own there."""


class TailBatching(Section):
    """Train synchronously without waiting for the longest answers (RollPacker)."""

    oversample: Annotated[float, Field(gt=1, le=2)] = 1.25
    """Groups that a short round starts / problems_per_step; the step takes the first to finish."""


class Rollout(Section):
    """Say what is generated, and how far generation may run ahead of training."""

    problems_per_step: Positive = 32
    """P: groups that one training step consumes."""
    group_size: Positive = 8
    """G: episodes per problem."""
    staleness: NonNegative | None = 4
    """η: no older token than this many versions is trained; 0 is synchronous RL. null: no bound, and `max_groups` is
    needed. Left out: 4, or null with `lag`."""
    lag: NonNegative | LagFile | None = None
    """Exact lag in place of the bound: each token that step v trains is min(lag, v) versions old. A number, {dist:
    FILE} or {trace: RUN}; docs/staleness.md. deadlines.step must cover lag + 1 versions' episodes in a row."""
    late: Literal["wait", "drop"] = "wait"
    """A step waits for a group that it would make too old, or drops it."""
    tail_batching: TailBatching | None = None
    """With `staleness: 0`: a step sets aside what is unfinished when it has P groups; P such groups make a round of
    their own. null: each step waits for all of its groups."""
    max_groups: Positive | None = None
    """Cap on groups in flight; null: (η+1)·P, or what the lags need. Without a bound the mean age of a group is up to
    max_groups / P + 1 versions."""
    max_new_tokens: Tokens = 1024
    """Token budget of one episode, all turns together."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature, also that of behavior_logprobs."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Strings that end a turn, beside the model's end tokens. The token that completes one is trained; the reward's
    text ends before the string."""
    stop_token_ids: tuple[NonNegative, ...] = ()
    """More token ids that end a turn."""
    env: str | None = None
    """`module:attribute` of an async function (problem, session) that drives one episode. null: the task's, or a single
    turn; with `tools`, arl.rollout.tools:use_tools."""
    tools: tuple[str, ...] = ()
    """What the policy may call: `python`, an interpreter in the sandbox, or a `module:function`; docs/tools.md."""
    max_turns: Positive = 16
    """Turns of one episode in which the policy may use tools."""
    tool_seconds: PositiveFloat = 10.0
    """Seconds after which a call of a tool has failed."""
    tool_output: Positive = 4000
    """Characters of what a tool returns that the policy sees."""
    agent: Annotated[str, Field(min_length=1)] | None = None
    """Command of a program that drives one episode through an OpenAI-compatible endpoint, in the place of an env:
    docs/agents.md."""
    filter: str | None = None
    """`module:function` (problem, trajectories) -> bool: which finished groups are trained; null: all.
    arl.rollout.filters:reward_varies is DAPO's dynamic sampling."""
    max_requeues: NonNegative = 2
    """Retries of a problem whose group failed or was dropped late, before it is given up and counted."""
    max_failed_share: FractionBelowOne = 0.5
    """The run ends once more than this share of 64 problems in a row has failed."""
    max_rejected_share: FractionBelowOne = 0.99
    """The run ends once the filter or the env has rejected more than this share of 256 problems in a row."""

    @model_validator(mode="before")
    @classmethod
    def _prepare(cls, values: Any) -> Any:
        """Leave out the default bound beside a lag."""
        has_lag = isinstance(values, dict) and values.get("lag") is not None
        return {"staleness": None} | values if has_lag else values

    @field_validator("lag", mode="before")
    @classmethod
    def _number_or_one_file(cls, lag: Any) -> Any:
        if lag is None or isinstance(lag, LagFile) or (type(lag) is int and lag >= 0):  # and no boolean, an int too
            return lag
        files = [file for file in lag.values() if file is not None] if isinstance(lag, dict) else []
        if len(files) == 1:
            return lag
        raise ValueError(f"rollout.lag {lag!r}: give a whole number of versions ≥ 0, {{dist: FILE}} or {{trace: RUN}}")

    @model_validator(mode="after")
    def _bound_or_lag(self) -> "Rollout":
        if self.lag is not None:
            if self.staleness is not None:
                raise ValueError(
                    f"rollout.staleness {self.staleness}: rollout.lag is exact; set one of the two to null"
                )
            if self.max_groups is not None:
                raise ValueError(
                    f"rollout.max_groups {self.max_groups}: rollout.lag says what is in flight; leave it out"
                )
        if self.is_unbounded and self.max_groups is None:
            raise ValueError(
                "rollout.staleness null: without a bound, rollout.max_groups must limit the groups in flight; "
                f"rollout.max_groups {3 * self.problems_per_step} makes groups about 4 versions old in the mean"
            )
        if self.late == "drop" and self.staleness is None:
            raise ValueError("rollout.late drop: without rollout.staleness no group is ever late; use wait")
        for name in TOOL_LIMITS:
            value = getattr(self, name)
            if not self.tools and value != type(self).model_fields[name].default:
                raise ValueError(f"rollout.{name} {value}: only with rollout.tools; name a tool, or leave it out")
        if self.tail_batching is not None and (self.staleness != 0 or self.late == "drop" or self.max_groups):
            raise ValueError("rollout.tail_batching: only with staleness 0, late wait and no max_groups")
        if self.agent is not None and self.env is not None:
            raise ValueError(f"rollout.agent {self.agent}: drives the episodes, and so does rollout.env; give one")
        if self.agent is not None and self.tools:
            raise ValueError(f"rollout.agent {self.agent}: brings tools of its own; leave out rollout.tools")
        return self

    @property
    def is_unbounded(self) -> bool:
        """Return whether nothing limits the age of a token: η = ∞."""
        return self.staleness is None and self.lag is None

    @property
    def max_age(self) -> int:
        """Return η in versions; without a bound, an age that no token reaches."""
        assert self.lag is None, "an exact lag has no bound"
        return UNREACHED_AGE if self.staleness is None else self.staleness

    @property
    def versions_ahead(self) -> int:
        """Return how many versions ahead of the engines the trainer may be when a step starts.

        With a bound the gate sees to it. Without one a step waits, because each published version takes memory.
        """
        return VERSIONS_AHEAD if self.staleness is None else self.staleness
