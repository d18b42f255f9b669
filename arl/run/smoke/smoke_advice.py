"""Say what to change after a smoke test, each time with the number that says so."""

import math
from collections.abc import Iterator, Sequence

from arl.config.recipe import Recipe
from arl.run.smoke.smoke_types import LogprobRow, SmokeStage

NOTICEABLE_RMS = 1e-2  # nats, from which on rounding is part of every importance weight
UNBALANCED = 3.0


def advice(recipe: Recipe | None, stages: Sequence[SmokeStage], rows: Sequence[LogprobRow]) -> list[str]:
    """Return what the stages suggest; nothing if they suggest nothing."""
    return [
        *_findings(stages),
        *_differences(rows),
        *_rounding(rows),
        *_startup(recipe, stages),
        *_balance(stages),
        *_slow_swaps(stages),
    ]


def _findings(stages: Sequence[SmokeStage]) -> Iterator[str]:
    for stage in stages:
        for finding in stage.findings:
            if finding.remedy:
                yield f"{finding.what}: {finding.remedy}"


def _differences(rows: Sequence[LogprobRow]) -> Iterator[str]:
    for row in rows:
        if row.verdict == "wrong":
            yield (
                f"do not train with engine {row.engine} in {row.precision} before its logprobs agree with the "
                f"trainer's ({row.weights}: RMS {row.rms:.2g}, rounding is at most {row.limit:.2g}): {row.reason}"
            )


def _rounding(rows: Sequence[LogprobRow]) -> Iterator[str]:
    """Advise a float32 head where rounding alone moves importance weights."""
    rounded = [row for row in rows if row.verdict == "ok" and row.rms > NOTICEABLE_RMS]
    if not rounded:
        return
    most = max(rounded, key=lambda row: row.rms)
    yield (
        f"in {most.precision} rounding alone moves a logprob by {most.rms:.2g} (RMS), and so the behavior weight by "
        f"about {math.expm1(most.rms):.1%}, which is more than GSPO's clip range: train.head float32 removes what "
        "rounded logits add to it, on both sides"
    )


def _startup(recipe: Recipe | None, stages: Sequence[SmokeStage]) -> Iterator[str]:
    """Compare starts with the deadline, beside which a real model must also load."""
    if recipe is None:
        return
    allowed = recipe.deadlines.startup
    starts = [stage.measured["start_s"] for stage in stages if "start_s" in stage.measured]
    longest = max(starts, default=0.0)
    has_finding = any("deadlines.startup" in finding.what for stage in stages for finding in stage.findings)
    if longest > allowed / 4 and not has_finding:
        yield (
            f"a start with the small model took {longest:.0f} s of deadlines.startup {allowed:g}, and the recipe's own "
            f"model has more to load: raise deadlines.startup to {math.ceil(8 * longest)}"
        )


def _balance(stages: Sequence[SmokeStage]) -> Iterator[str]:
    """Compare both sides of the same precision."""
    trainers = _rates(stages, "trainer")
    for name, rate in _rates(stages, "engine ").items():
        precision = name.partition(", ")[2]
        trained = trainers.get(f"trainer, {precision}")
        if trained is None:
            continue
        faster, ratio = ("trainer", trained / rate) if trained > rate else ("engine", rate / trained)
        if ratio > UNBALANCED:
            yield (
                f"{name}: {rate:,.0f} tokens/s beside the trainer's {trained:,.0f}: with this small model the {faster} "
                f"side is {ratio:.1f} times as fast, so give the other one more devices or threads; compare "
                "idle/trainer and idle/engine in a run of your own"
            )


def _rates(stages: Sequence[SmokeStage], beginning: str) -> dict[str, float]:
    rated = [stage for stage in stages if stage.name.startswith(beginning) and "tokens_per_s" in stage.measured]
    return {stage.name: stage.measured["tokens_per_s"] for stage in rated}


def _slow_swaps(stages: Sequence[SmokeStage]) -> Iterator[str]:
    """Name the fastest transport where another one is slow."""
    swaps = {stage.name: stage.measured["pause_s"] for stage in stages if "pause_s" in stage.measured}
    slow = [stage for stage in stages if stage.name in swaps and stage.verdict == "slow"]
    for stage in slow:
        fastest = min(swaps, key=lambda name: swaps[name])
        pause = swaps[stage.name]
        yield f"{stage.name}: a pause of {pause:.1f} s; {fastest} took {swaps[fastest]:.1f}: see sync.transport"
