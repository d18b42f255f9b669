"""Audit a run of the storm: what each attempt said at its end, when it ended, what it left, and what was trained.

attempt ─► recovered, or: exit code, role, process id and cause, in time, nothing left behind
run     ─► every problem trained once, no token too old, the ledger closes
"""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

from arl.config.run_section import SHUTDOWN
from arl.errors import RunError, RunStopped
from arl.launch.run_secrets import FOLDER as SECRETS
from tests.cluster.trained_once import assert_trained_once
from tests.storm.attempt import FINISHED, Attempt
from tests.storm.storm_run import BOUND, PROBLEMS, StormRun

CAUSES = {
    "kill": "SIGKILL",
    "terminate": "SIGTERM",
    "stop": "is stopped by a signal",
    "pause": "is stopped by a signal",
}
FATAL = ("trainer", "controller")  # whose loss ends a run; every other process is replaced
FATES = ("trained", "rejected", "failed", "dropped", "in_flight")
END_SECONDS = 15.0  # for the processes to end, and for what a busy machine adds


def violations(run: StormRun) -> list[str]:
    """Return what is wrong with a run that is over; empty: nothing."""
    found = []
    for attempt in run.attempts:
        found += [f"attempt {attempt.number}, {attempt.shot}: {wrong}" for wrong in _wrong_with(attempt, run)]
    if not run.has_finished:
        return [*found, "the run has not finished"]
    audits: list[Callable[[], None]] = [
        lambda: assert_trained_once(run.run, run.steps),
        lambda: audit_ages(run.run),
        lambda: audit_ledger(run.run, run.steps),
        lambda: audit_files(run.run),
    ]
    for audit in audits:
        try:
            audit()
        except (AssertionError, OSError, ValueError, KeyError) as error:  # the next one may find something else
            found.append(f"{type(error).__name__}: {error}")
    return found


def audit_ages(run: Path) -> None:
    """Check that no token was trained too old."""
    rows = pq.read_table(run / "trajectories", columns=["trained_at", "policy_versions"]).to_pylist()
    trained = [row for row in rows if row["trained_at"] is not None]
    ages = [row["trained_at"] - version for row in trained for version in row["policy_versions"] if version >= 0]
    assert max(ages) <= BOUND, f"a token of age {max(ages)} was trained"


def audit_ledger(run: Path, steps: int) -> None:
    """Check that the books of tokens and groups close at every step and at the end."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        if "tokens/trained" in record:
            accounted = sum(record[f"audit/tokens_{fate}"] for fate in FATES)
            assert record["audit/tokens_generated"] == accounted, f"step {record['step']}: tokens are unaccounted for"
    groups = json.loads((run / "summary.json").read_text())["groups"]
    assert groups["trained"] == steps * PROBLEMS
    assert groups["in flight"] == 0


def audit_files(run: Path) -> None:
    """Check that a finished run has left no secret in its directory."""
    assert not (run / SECRETS).exists(), "the run's secrets are still there"


def _wrong_with(attempt: Attempt, run: StormRun) -> list[str]:
    """Return what is wrong with the end of one attempt."""
    found = []
    if attempt.left:
        found.append(f"left behind after one second, gone after {attempt.seconds_left} s: {attempt.left}")
    if attempt.is_overdue:
        return [*found, "it did not end"]
    if "Traceback" in attempt.output:
        found.append("it shows a traceback")
    if attempt.code == FINISHED:
        return found
    if attempt.victim is None or attempt.shot is None:
        return [*found, f"it ended without a signal, with code {attempt.code}"]
    found += _wrong_end(attempt, run)
    return found


def _wrong_end(attempt: Attempt, run: StormRun) -> list[str]:
    """Return what is wrong with the end of an attempt that a signal has ended."""
    assert attempt.victim is not None
    assert attempt.shot is not None
    action = attempt.shot.action
    role = attempt.victim.role
    found = []
    if role not in FATAL and attempt.was_training:
        found.append(f"the loss of {attempt.victim} ended the run, with code {attempt.code}")
    limit = latest_seconds(attempt, run)
    if attempt.seconds > limit:
        found.append(f"it ended {attempt.seconds} s after the signal, later than {limit:.0f} s")
    if role == "controller":
        allowed = {"kill": {-9}, "terminate": {RunStopped.exit_code, -15}}.get(action, set())
        if attempt.code not in allowed:
            found.append(f"the controller ended with code {attempt.code}")
        return found
    if attempt.code != RunError.exit_code:
        found.append(f"it ended with code {attempt.code}")
    if not is_explained(attempt):
        found.append(f"the message does not name {attempt.victim} and {CAUSES[action]}")
    return found


def latest_seconds(attempt: Attempt, run: StormRun) -> float:
    """Return the deadline by which an attempt has ended after a signal that ended it."""
    waits = run.deadlines
    before = waits["startup"] if not attempt.was_training else max(waits["step"], 2 * waits["swap"] + waits["startup"])
    return before + waits["stop"] + SHUTDOWN + END_SECONDS


def is_explained(attempt: Attempt) -> bool:
    """Return whether the message names role, process id and cause."""
    assert attempt.victim is not None
    assert attempt.shot is not None
    message = attempt.diagnosis
    role = attempt.victim.role.split()[0]
    names = re.search(rf"{role}[- \w]*\(pid {attempt.victim.process.pid}\b", message) is not None
    return names and CAUSES[attempt.shot.action] in message
