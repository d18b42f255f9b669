"""The recipe's section about rollouts: what is generated, and how far generation may run ahead of training."""

from typing import Any, Literal

from pydantic import field_validator, model_validator

from arl.config.section import NonNegative, Positive, PositiveFloat, Section, Tokens


class LagFile(Section):
    """Lags from a file: one of the two."""

    dist: str | None = None
    """JSON or YAML file that maps lag to weight, like {0: 0.5, 2: 0.5}; each group draws its own, by the seed."""
    trace: str | None = None
    """Directory of a finished run of the same model, data and batch: each group is as stale as its own was."""


class Rollout(Section):
    """What is generated, and how far generation may run ahead of training."""

    problems_per_step: Positive = 32
    """P: groups consumed by one training step."""
    group_size: Positive = 8
    """G: episodes per problem."""
    staleness: NonNegative | None = 4
    """η: no token older than this many versions is ever trained; 0 is synchronous RL. null with `lag`, else 4."""
    lag: NonNegative | LagFile | None = None
    """Exact lag in place of the bound, versions: every token that step v trains is min(lag, v) old. A number,
    {dist: FILE} or {trace: RUN}; see docs/staleness.md. A step may wait for what lag + 1 versions sample, one after
    the other: deadlines.step must cover it."""
    late: Literal["wait", "drop"] = "wait"
    """A step that would make a late group too old waits for it, or abandons it and re-queues its problem."""
    max_requeues: NonNegative = 2
    """late: drop — times one problem may be re-queued before it is given up (counted)."""
    max_groups: Positive | None = None
    """Cap on groups in flight; none: the staleness gate alone, (η+1)·P at most, or the lags."""
    max_new_tokens: Tokens = 48
    """Token budget of one episode."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature; behavior_logprobs are log_softmax(logits / temperature)."""
    env: str | None = None
    """`module:attribute` of an async function (problem, session) that drives one episode; none: the task's own, or else
    a single turn."""
    max_failures: Positive = 8
    """Groups that may fail in a row before the run ends with a diagnosis."""
    filter: str | None = None
    """`module:function` (problem, trajectories) -> bool: which finished groups are trained; none: all of them.
    arl.rollout.filters:reward_varies is the dynamic sampling of DAPO."""
    max_rejects: Positive = 256
    """Groups that may be rejected in a row, by filter or env, before the run ends with a diagnosis."""

    @model_validator(mode="before")
    @classmethod
    def _no_default_bound_beside_a_lag(cls, values: Any) -> Any:
        return {"staleness": None} | values if isinstance(values, dict) and values.get("lag") is not None else values

    @field_validator("lag", mode="before")
    @classmethod
    def _number_or_one_file(cls, lag: Any) -> Any:
        if lag is None or isinstance(lag, LagFile) or (type(lag) is int and lag >= 0):
            return lag
        files = {kind: file for kind, file in lag.items() if file is not None} if isinstance(lag, dict) else {}
        if [(kind in LagFile.model_fields, type(file)) for kind, file in files.items()] == [(True, str)]:
            return files
        raise ValueError(f"rollout.lag {lag!r}: give a whole number of versions ≥ 0, {{dist: FILE}} or {{trace: RUN}}")

    @model_validator(mode="after")
    def _bound_or_lag(self) -> "Rollout":
        exact = self.lag is not None
        if not exact and self.staleness is None:
            raise ValueError("rollout.staleness null: only rollout.lag takes its place; give a bound, like 4")
        if exact and self.staleness is not None:
            raise ValueError(f"rollout.staleness {self.staleness}: rollout.lag is exact; set one of the two to null")
        if exact and self.late == "drop":
            raise ValueError("rollout.late drop: with rollout.lag no group is ever late; use wait")
        if exact and self.max_groups is not None:
            raise ValueError(f"rollout.max_groups {self.max_groups}: rollout.lag says what is in flight; leave it out")
        return self
