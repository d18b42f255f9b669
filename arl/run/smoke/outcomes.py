"""Say what stages of engines and trainer measured, and judge it: one line for a person, numbers for a program."""

import math
from collections.abc import Sequence
from typing import Any

from arl.run.finding import Finding
from arl.run.smoke.busy_engines import Generated
from arl.run.smoke.repeated_batch import TrainedStep, behavior, median_seconds
from arl.run.smoke.smoke_sides import EngineSide
from arl.run.smoke.smoke_types import LogprobRow, StageOutcome, Verdict
from arl.run.smoke.weight_swaps import Swapped
from arl.types import Batch

SLOW_START = 0.5  # of deadlines.startup
SLOW_PAUSE = 2.0  # seconds; to load the small model takes milliseconds


def describe_engine(side: EngineSide, generated: Generated) -> StageOutcome:
    """Report an engine that generates; slow, if its start took much of the deadline."""
    recipe = side.trial.recipe
    rate = generated.tokens_per_second
    start = side.start_seconds
    allowed = recipe.deadlines.startup
    is_slow = start > SLOW_START * allowed
    findings = []
    if is_slow:
        remedy = f"raise deadlines.startup to {math.ceil(4 * start)}"
        findings.append(Finding(False, f"a start takes {start:.0f} s of deadlines.startup {allowed:g}", remedy))
    return StageOutcome(
        said=f"{rate:,.0f} tokens/s with {recipe.engine.slots} × {recipe.engine.replicas} open; ready in {start:.1f} s",
        verdict="slow" if is_slow else "ok",
        measured={
            "tokens_per_s": round(rate, 1),
            "tokens": generated.tokens,
            "slots": recipe.engine.slots,
            "replicas": recipe.engine.replicas,
            "start_s": round(start, 2),
        },
        findings=findings,
    )


def describe_trainer(start_seconds: float, batch: Batch, steps: Sequence[TrainedStep]) -> StageOutcome:
    """Report the steps on one batch; wrong, unless the loss falls and every gradient is finite."""
    seconds = median_seconds(steps)
    loss_tokens = len(behavior(batch)[0])
    losses = [one.loss for one in steps]
    norms = [one.number("grad_norm") for one in steps]
    measured: dict[str, Any] = {
        "tokens_per_s": round(loss_tokens / seconds, 1),
        "loss_tokens": loss_tokens,
        "step_s": round(seconds, 4),
        "first_step_s": round(steps[0].seconds, 4),
        "start_s": round(start_seconds, 2),
        "losses": [round(loss, 5) for loss in losses],
        "grad_norms": norms,
        "mfu": steps[-1].number("hardware/mfu"),
        "memory_gb": steps[-1].number("hardware/memory_gb"),
    }
    said = f"{loss_tokens / seconds:,.0f} tokens/s, loss {losses[0]:.4f} → {losses[-1]:.4f}"
    if measured["mfu"] is not None:
        said += f", MFU {measured['mfu']:.1%}"
    if measured["memory_gb"] is not None:
        said += f", {measured['memory_gb']:.1f} GB"
    said += f"; ready in {start_seconds:.1f} s"
    is_finite = all(norm is not None and math.isfinite(norm) for norm in norms)
    verdict: Verdict = "ok"
    if not is_finite:
        verdict = "wrong"
        said = f"a gradient norm is not finite: {norms}; {said}"
    elif not losses[-1] < losses[0]:
        verdict = "wrong"
        said = f"the loss of a repeated batch does not fall; {said}"
    return StageOutcome(said=said, verdict=verdict, measured=measured)


def describe_logprobs(row: LogprobRow) -> StageOutcome:
    """Report one row of the table as a stage."""
    said = f"RMS {row.rms:.2g} (limit {row.limit:.2g}), KL {row.kl:.2g}, {row.tokens} tokens: {row.reason}"
    measured = {"rms": row.rms, "kl": row.kl, "largest": row.largest, "limit": row.limit, "tokens": row.tokens}
    return StageOutcome(said=said, verdict=row.verdict, measured=measured)


def describe_swap(swapped: Swapped) -> StageOutcome:
    """Report a swap: wrong, if logprobs with the new weights differ; slow, if the pause is long."""
    report = swapped.report
    row = swapped.row
    checked = "every weight compared" if swapped.is_checked else "weights not compared: the backend cannot, or tp > 1"
    said = (
        f"paused {1e3 * report.pause_seconds:.0f} ms of {1e3 * report.seconds:.0f}; {checked}; then RMS {row.rms:.2g}"
    )
    verdict: Verdict = row.verdict
    if row.verdict != "ok":
        said += f": {row.reason}"
    elif report.pause_seconds > SLOW_PAUSE:
        verdict = "slow"
    measured = {
        "pause_s": round(report.pause_seconds, 4),
        "swap_s": round(report.seconds, 4),
        "publish_s": round(swapped.publish_seconds, 4),
        "weights_compared": swapped.is_checked,
        "rms": row.rms,
    }
    return StageOutcome(said=said, verdict=verdict, measured=measured)
