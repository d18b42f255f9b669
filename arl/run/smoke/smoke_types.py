"""Define what `arl doctor --smoke` finds: stages, rows of the logprob table, and the report of all."""

from typing import Any, Literal

from msgspec import Struct

from arl.run.finding import Finding

Verdict = Literal["ok", "slow", "wrong", "failed", "skipped"]
BAD: tuple[Verdict, ...] = ("wrong", "failed")  # the command exits with 1


class StageOutcome(Struct, frozen=True, kw_only=True):
    """Hold what the work of one stage returns."""

    said: str  # one line for a person
    verdict: Verdict = "ok"
    measured: dict[str, Any] = {}  # numbers for a program; names carry their unit
    findings: list[Finding] = []  # what is not good, with its remedy


class SmokeStage(Struct, frozen=True, kw_only=True):
    """Hold one stage that has ended."""

    name: str
    verdict: Verdict
    seconds: float
    said: str
    measured: dict[str, Any] = {}
    findings: list[Finding] = []


class Precision(Struct, frozen=True):
    """Name the compute dtypes of both sides."""

    engine: str
    train: str

    def __str__(self) -> str:
        return self.engine if self.engine == self.train else f"{self.engine} engine, {self.train} trainer"

    @property
    def coarser(self) -> str:
        """Return the dtype whose rounding dominates."""
        order = ("bfloat16", "float16", "float32")
        return min(self.engine, self.train, key=order.index)


class LogprobRow(Struct, frozen=True, kw_only=True):
    """Compare the logprobs of an engine with the trainer's, for the same sampled tokens and version."""

    engine: str  # its kind
    precision: str
    weights: str  # those of the start, or the transport that brought them
    tokens: int
    rms: float  # of trainer − engine, nats
    kl: float  # mean of w − 1 − log w with w = exp(trainer − engine): estimates KL(engine ‖ trainer), nats
    largest: float  # absolute difference, nats
    limit: float  # the largest rms that is rounding
    verdict: Verdict
    reason: str


class SmokeReport(Struct, frozen=True, kw_only=True):
    """Hold everything that a bug report needs."""

    verdict: Verdict  # the worst of all stages
    seconds: float
    recipe: str  # its name, or that there was none
    machine: dict[str, Any]
    versions: dict[str, str]
    environment: dict[str, str]  # variables that matter
    stages: list[SmokeStage]
    logprobs: list[LogprobRow]
    advice: list[str]

    @property
    def is_bad(self) -> bool:
        """Return whether a stage is wrong or has failed."""
        return self.verdict in BAD


def worst(verdicts: list[Verdict]) -> Verdict:
    """Return the verdict that matters most.

    >>> worst(["ok", "skipped", "slow"])
    'slow'
    """
    order: tuple[Verdict, ...] = ("failed", "wrong", "slow", "ok", "skipped")
    return min(verdicts, key=order.index, default="skipped")
