"""Audit a run of the storm: what each attempt said at its end, when it ended, what it left, and what was trained.

attempt ─► recovered, or: exit code, role, process id and cause, in time, nothing left behind
run     ─► every problem trained once, no token too old, the ledger closes
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from arl.config.run_section import SHUTDOWN
from arl.errors import RunError, RunStopped
from arl.launch.run_secrets import FOLDER as SECRETS
from tests.cluster.trained_once import assert_trained_once
from tests.storm.run_processes import RunProcess
from tests.storm.shots import Shot
from tests.storm.storm_run import FINISHED, PROBLEMS, SIGNALS, Attempt, StormRun

FATAL = ("trainer", "controller")  # whose loss ends a run; every other process is replaced
FATES = ("trained", "rejected", "failed", "dropped", "in_flight")
END_SECONDS = 15.0  # for the processes to end, and for what a busy machine adds


def violations(run: StormRun) -> list[str]:
    """Return what is wrong with a run that is over; empty: nothing."""
    found = [
        f"attempt {number}, {attempt.shot}: {wrong}"
        for number, attempt in enumerate(run.attempts)
        for wrong in _wrong_with(attempt, run)
    ]
    if not run.has_finished:
        return [*found, "the run has not finished"]
    try:
        assert_trained_once(run.run, run.steps)
        audit_ledger(run.run, run.steps)
        assert not (run.run / SECRETS).exists(), "the run's secrets are still there"
    except AssertionError as error:
        found.append(str(error))
    return found


def audit_ledger(run: Path, steps: int) -> None:
    """Check that the books of tokens and groups close at every step and at the end."""
    for line in (run / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        if "tokens/trained" in record:
            accounted = sum(record[f"audit/tokens_{fate}"] for fate in FATES)
            assert record["audit/tokens_generated"] == accounted, f"step {record['step']}: tokens are unaccounted for"
    groups = json.loads((run / "summary.json").read_text())["groups"]
    assert (groups["trained"], groups["in flight"]) == (steps * PROBLEMS, 0)


def _wrong_with(attempt: Attempt, run: StormRun) -> Iterator[str]:
    """Yield what is wrong with the end of one attempt."""
    if attempt.left:
        yield f"left behind after one second: {attempt.left}"
    if attempt.is_overdue:
        yield "it did not end"
    elif "Traceback" in attempt.output:
        yield "it shows a traceback"
    elif attempt.code == FINISHED:
        return
    elif attempt.victim is None or attempt.shot is None:
        yield f"it ended without a signal, with code {attempt.code}"
    else:
        yield from _wrong_end(attempt, attempt.victim, attempt.shot, run)


def _wrong_end(attempt: Attempt, victim: RunProcess, shot: Shot, run: StormRun) -> Iterator[str]:
    """Yield what is wrong with the end of an attempt that a signal has ended."""
    if victim.role not in FATAL and attempt.was_training:
        yield f"the loss of {victim} ended the run, with code {attempt.code}"
    waits = run.deadlines
    begun = max(waits["step"], 2 * waits["swap"] + waits["startup"]) if attempt.was_training else waits["startup"]
    limit = begun + waits["stop"] + SHUTDOWN + END_SECONDS
    if attempt.seconds > limit:
        yield f"it ended {attempt.seconds} s after the signal, later than {limit:.0f} s"
    if victim.role == "controller":
        allowed = {"kill": {-9}, "terminate": {RunStopped.exit_code, -15}}.get(shot.action, set())
        if attempt.code not in allowed:
            yield f"the controller ended with code {attempt.code}"
        return
    if attempt.code != RunError.exit_code:
        yield f"it ended with code {attempt.code}"
    named = rf"{victim.role.split()[0]}[- \w]*\(pid {victim.process.pid}\b"
    cause = SIGNALS[shot.action].name if shot.action in SIGNALS else "is stopped by a signal"
    if cause not in attempt.diagnosis or re.search(named, attempt.diagnosis) is None:
        yield f"the message does not name {victim} and {cause}"
