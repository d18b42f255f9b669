"""Audit a run on several nodes after its end: what it trained, what it said, what it left behind.

run directory ─► nothing lost, nothing twice, nothing too old, the ledger closes
messages      ─► role, process id, node and cause of what was hit, in time
nodes         ─► no process, no shared memory, no socket
"""

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

from arl.config.recipe_file import load_recipe
from arl.data.problems import ProblemOrder, load_problems
from arl.launch.slurm.slurm_launcher import STEPS
from arl.launch.trust import FOLDER as SECRETS
from tests.cluster.faults import Fault, Victim
from tests.cluster.faulty_run import BOUND, GROUP, LATEST_SECONDS, PROBLEMS, Attempt, FaultyRun
from tests.cluster.machines import Machine
from tests.cluster.slurm_cluster import DAEMONS, SlurmCluster

TELLING = ("arl: ", "engine-", "trainer-", "No process ")  # beginnings of lines about processes
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


def remains(cluster: SlurmCluster) -> list[str]:
    """Return what is left on nodes after the end of every job, when it has had time to end; empty: nothing."""
    found = []
    for name, machine in cluster.nodes.items():
        _, alive = psutil.wait_procs(cluster.processes_of_jobs(name), timeout=15)
        found += [f"{name}: process {_command(process)}" for process in alive]
        found += [f"{name}: /dev/shm/{file}" for file in machine.run("ls", "/dev/shm").stdout.split()]
        found += [f"{name}: listens on {address}" for address in _open_ports(machine)]
    return found


def audit_files(run: Path) -> None:
    """Check that a finished run has left no secret, and no file of a step, in its directory."""
    assert not (run / SECRETS).exists(), "the certificate and its key are still there"
    assert not list(run.glob(f"{STEPS}/*")), "files of steps, which hold the run's key, are still there"


def _command(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {' '.join(process.cmdline())[:200]}"
    except psutil.NoSuchProcess:
        return "that has just ended"


def _open_ports(machine: Machine) -> list[str]:
    """Return the TCP sockets on which something listens on a machine, but for slurmd."""
    listed = machine.run("ss", "--listening", "--tcp", "--numeric", "--no-header", "--processes").stdout.splitlines()
    return [line.split()[3] for line in listed if not any(f'"{daemon}"' in line for daemon in DAEMONS)]


def audit_end(attempt: Attempt) -> None:
    """Check that an attempt which did not finish says whom a fault has hit, and came to its end in time."""
    assert attempt.hits, f"it ended without a fault: {attempt.state}\n{attempt.diagnosis}"
    assert any(is_explained(fault, victim, attempt.diagnosis) for fault, victim in attempt.hits), (
        f"{[f'{fault}: {victim}' for fault, victim in attempt.hits]} is not explained by:\n{attempt.diagnosis}"
    )
    assert attempt.seconds is not None
    assert attempt.seconds < LATEST_SECONDS, f"it ended {attempt.seconds:.0f} s after the last fault"


def is_explained(fault: Fault, victim: Victim, message: str) -> bool:
    """Return whether a message names role, process id and node of what was hit; of a cut, the node.

    A runner and an srun are parts of a process of the run, which is named in their place.
    """
    if fault.action == "cut":
        return re.search(rf"\b{victim.node}\b", message) is not None
    if fault.role.endswith("of engine"):
        return victim.role in message
    role = victim.role.replace("-", r"[- ](rank )?")
    return re.search(rf"{role} \(pid {victim.pid} on {victim.node}\b", message) is not None


def violations(run: FaultyRun, cluster: SlurmCluster) -> list[str]:
    """Audit a run that is over, and return what is wrong; empty: nothing."""
    audits: list[Callable[[], None]] = [
        lambda: audit_training(run.run, run.steps),
        lambda: audit_ledger(run.run, run.steps),
        lambda: audit_files(run.run),
        *(functools.partial(audit_end, attempt) for attempt in run.attempts if not attempt.has_finished),
    ]
    found = remains(cluster)
    for audit in audits:
        try:
            audit()
        except Exception as error:  # the next one may find something else
            found.append(f"{type(error).__name__}: {error}")
    return found


def record_of(run: FaultyRun, number: int) -> dict[str, Any]:
    """Return what a benchmark keeps of one run."""
    return {"run": number, "steps": run.steps, "attempts": [_record_of(attempt) for attempt in run.attempts]}


def _record_of(attempt: Attempt) -> dict[str, Any]:
    hits = [f"{fault}: {who.role} (pid {who.pid} on {who.node})" for fault, who in attempt.hits]
    seconds = None if attempt.seconds is None else round(attempt.seconds, 1)
    return {
        "faults": hits,
        "ended": attempt.state,
        "seconds_after_fault": seconds,
        "last_step": attempt.last_step,
        "diagnosis": [] if attempt.has_finished else essence(attempt.diagnosis),
    }


def essence(diagnosis: str) -> list[str]:
    """Return the lines that say what happened to whom, without the ends of logs and without who else waited.

    >>> essence("arl: controller waited 30 s for trainer rank 0. Waiting: a waits\\nThe end of x.log:\\n    Step sent")
    ['arl: controller waited 30 s for trainer rank 0.']
    """
    lines = [line for line in diagnosis.splitlines() if line.startswith(TELLING)]
    return [line.partition(" Waiting: ")[0].partition(" The end of ")[0] for line in lines]
