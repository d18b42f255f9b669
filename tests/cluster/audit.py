"""Audit a run on several nodes after its end: what it trained, what it said, what it left behind.

run directory ─► nothing lost, nothing twice, nothing too old, the ledger closes
messages      ─► role, process id, node and cause of what was hit, in time
nodes         ─► no process, no shared memory, no socket
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

from arl.config.recipe_file import load_recipe
from arl.data.problems import ProblemOrder, load_problems
from tests.cluster.faulty_run import BOUND, GROUP, PROBLEMS, Attempt, FaultyRun
from tests.cluster.machines import Machine

DAEMONS = ("munged", "slurmd")  # run on every node, as process 1 does
FATES = ("trained", "rejected", "failed", "dropped", "in_flight")


def audit_training(run: Path, steps: int) -> None:
    """Check that a finished run has trained every problem that its steps needed, once, and no token too old."""
    rows = pq.read_table(run / "trajectories").to_pylist()
    problems = {row["group_id"]: row["problem_id"] for row in rows}
    assert len(rows) == steps * PROBLEMS * GROUP == GROUP * len(problems), "groups are incomplete, or trained twice"
    ages = [row["trained_at"] - version for row in rows for version in row["policy_versions"] if version >= 0]
    assert max(ages) <= BOUND, f"a token of age {max(ages)} was trained"
    recipe = load_recipe(run / "recipe.yaml")
    order = ProblemOrder(load_problems(recipe.data, 0).training, recipe.seed)
    expected = sorted(next(order).id for _ in range(steps * PROBLEMS))
    assert sorted(problems.values()) == expected, "a problem was lost, or another one trained"


def audit_ledger(run: Path, steps: int) -> None:
    """Check that the books of tokens and groups close at every step and at the end."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    of_steps = [record for record in records if "tokens/trained" in record]
    assert [record["step"] for record in of_steps] == list(range(1, steps + 1)), "steps are missing or repeated"
    for record in of_steps:
        accounted = sum(record[f"audit/tokens_{fate}"] for fate in FATES)
        assert record["audit/tokens_generated"] == accounted, f"tokens of step {record['step']} are unaccounted for"
    groups = json.loads((run / "summary.json").read_text())["groups"]
    assert groups["trained"] == steps * PROBLEMS
    assert groups["in flight"] == 0


def remains(nodes: dict[str, Machine]) -> list[str]:
    """Return what is left on nodes after the end of every job, when it has had time to end; empty: nothing."""
    found = []
    for name, machine in nodes.items():
        strangers = [process for process in machine.processes() if _is_strange(process, machine)]
        _, alive = psutil.wait_procs(strangers, timeout=15)
        found += [f"{name}: process {_command(process)}" for process in alive]
        found += [f"{name}: /dev/shm/{file}" for file in machine.run("ls", "/dev/shm").stdout.split()]
        found += [f"{name}: listens on {address}" for address in _open_ports(machine)]
    return found


def _is_strange(process: psutil.Process, machine: Machine) -> bool:
    try:
        return process.pid != machine.pid and process.name() not in DAEMONS
    except psutil.NoSuchProcess:
        return False


def _command(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {' '.join(process.cmdline())[:200]}"
    except psutil.NoSuchProcess:
        return "that has just ended"


def _open_ports(machine: Machine) -> list[str]:
    """Return the TCP sockets on which something listens on a machine, but for slurmd."""
    listed = machine.run("ss", "--listening", "--tcp", "--numeric", "--no-header", "--processes").stdout.splitlines()
    return [line.split()[3] for line in listed if not any(f'"{daemon}"' in line for daemon in DAEMONS)]


def unnamed(attempt: Attempt) -> list[str]:
    """Return what the end of a failed attempt does not say, of the last process that was hit; empty: it says all."""
    fault, victim = attempt.hits[-1]
    message = attempt.diagnosis
    missing = []
    if fault.action != "cut" and not _has_any(message, [f"pid {victim.pid}", f" {victim.pid} "]):
        missing.append(f"pid {victim.pid}")
    if victim.node not in message:
        missing.append(f"node {victim.node}")
    return missing


def _has_any(message: str, words: Sequence[str]) -> bool:
    return any(word in message for word in words)


def record_of(run: FaultyRun, number: int) -> dict[str, Any]:
    """Return what a benchmark keeps of one run."""
    return {
        "run": number,
        "steps": run.steps,
        "attempts": [
            {
                "faults": [
                    {"fault": str(fault), "hit": f"{who.role} (pid {who.pid} on {who.node})"} for fault, who in a.hits
                ],
                "ended": a.state,
                "seconds_after_fault": None if a.seconds is None else round(a.seconds, 1),
                "last_step": a.last_step,
                "diagnosis": "" if a.has_finished else a.diagnosis[:1500],
            }
            for a in run.attempts
        ],
    }
