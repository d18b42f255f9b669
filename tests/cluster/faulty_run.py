"""Run `arl train` on a Slurm cluster while faults happen, and resume it until it has finished.

arl train ─► job ─► its output shows a step ─► the next fault ─► … ─► the job ends ─► arl train --resume
                                                                          │ or Slurm requeues it
                                                    Attempt: how, how long after the fault, what it said
"""

import functools
import random
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.faults import Fault, Saboteur, Victim
from tests.cluster.slurm_cluster import SlurmCluster, wait_for

PROBLEMS = 2  # of a step
GROUP = 2
BOUND = 2
RECIPE = f"""\
name: small
model:
  tiny: {{hidden_size: 32, layers: 1, heads: 2, intermediate_size: 64}}
data: {{task: running_checksum, options: {{size: 2000}}}}
rollout: {{problems_per_step: {PROBLEMS}, group_size: {GROUP}, staleness: {BOUND}, max_new_tokens: 8}}
train: {{steps: STEPS, minibatches: 1, learning_rate: 1.5e-4, ranks: 2, threads: 1}}
reward: {{workers: 1}}
engine: {{replicas: 2, slots: 32, stream_interval: 4, threads: 1}}
eval: {{problems: 0}}
launcher: slurm
cluster: {{nodes: NODES, interface: eth0}}
output: {{checkpoint_every: CHECKPOINTS}}
deadlines: {{startup: 90, step: 30, swap: 20, generate: 20, reward: 5, shutdown: 5}}
"""
# From a fault to the end of the job: the longest deadline (step), then what the launcher gives processes to end, their
# nodes to answer, and Slurm to find a node dead; the rest is for a machine that has too much to do.
LATEST_SECONDS = 90.0
OVER = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT", "OUT_OF_MEMORY")
LIMIT_MINUTES = 30  # of a job; none comes near it
STEP_LINE = re.compile(r"^step +(\d+)", re.MULTILINE)
MOST_ATTEMPTS = 6
POLL_SECONDS = 0.1
STATE_SECONDS = 1.0  # between two questions to Slurm
REQUEUED = "REQUEUED"  # state of an attempt whose job waits for its next one
SUBMITTED = re.compile(r"job (?P<job>\d+) is submitted.*^output +(?P<log>\S+)$", re.MULTILINE | re.DOTALL)


@dataclass
class Attempt:
    """Say what became of one job: of the first one, or of one that resumed it.

    Args:
        output: what the job has printed.
        hits: the faults that happened to it, and whom they have hit.
        state: that Slurm gives.
        seconds: from the last fault to the end of the job; None: there was no fault.
        last_step: that its output shows.
    """

    output: str = ""
    hits: list[tuple[Fault, Victim]] = field(default_factory=list)
    state: str = ""
    seconds: float | None = None
    last_step: int = 0

    @property
    def has_finished(self) -> bool:
        """Return whether the run has come to its end."""
        return self.state == "COMPLETED"

    @property
    def diagnosis(self) -> str:
        """Return what the run, or the script that started it, says of its end."""
        at = self.output.find("\narl: ")
        return self.output[at + 1 :] if at >= 0 else ""


class Job:
    """Read the output of a job, attempt by attempt: one that is requeued writes on."""

    def __init__(self, job: str, log: Path) -> None:
        self.id = job
        self._log = log
        self._taken = 0  # bytes that earlier attempts have written

    def new_output(self) -> str:
        """Return what this attempt has written by now."""
        if not self._log.exists():
            return ""
        return self._log.read_bytes()[self._taken :].decode(errors="replace")

    def take_output(self) -> str:
        """Return what this attempt has written; what follows is the next one's."""
        output = self.new_output()
        if self._log.exists():
            self._taken = self._log.stat().st_size
        return output


class FaultyRun:
    """Hold one run of the recipe on a cluster, with the faults that are still to happen."""

    def __init__(self, cluster: SlurmCluster, directory: Path, faults: Sequence[Fault], steps: int, seed: int) -> None:
        self.directory = directory
        self.steps = steps
        self.attempts: list[Attempt] = []
        self._cluster = cluster
        self._faults = list(faults)
        self._saboteur = Saboteur(cluster.nodes, random.Random(seed))
        directory.mkdir(parents=True)
        settings = {"STEPS": steps, "CHECKPOINTS": max(2, steps // 20), "NODES": len(cluster.nodes)}
        recipe = RECIPE
        for name, value in settings.items():
            recipe = recipe.replace(name, str(value))
        (directory / "recipe.yaml").write_text(recipe)

    @property
    def run(self) -> Path:
        """Return the run directory."""
        return self.directory / "runs" / "small"

    def to_the_end(self) -> None:
        """Run, and resume, until the run has finished. A job that Slurm has requeued goes on by itself."""
        job = None
        while not (self.attempts and self.attempts[-1].has_finished):
            assert len(self.attempts) < MOST_ATTEMPTS, f"not finished by {MOST_ATTEMPTS} attempts"
            self._wait_for_nodes()
            if job is not None:  # a controller that was cut off has written until its node came back
                self.attempts[-1].output += job.take_output()
            if job is None or self.attempts[-1].state != REQUEUED:
                job = self._submit()
            else:
                self._cluster.start_now(job.id)
            self._attempt(job)
        self._wait_for_nodes()

    def _attempt(self, job: Job) -> None:
        """Follow a job until it ends or is requeued."""
        attempt = Attempt()
        self.attempts.append(attempt)
        hit_at = None
        asked_at = 0.0
        has_run = False
        while not (attempt.state in OVER or attempt.state == REQUEUED):
            attempt.output = job.new_output()
            attempt.last_step = max((int(step) for step in STEP_LINE.findall(attempt.output)), default=0)
            if self._inflict_next(attempt):
                hit_at = time.monotonic()
            self._saboteur.end_what_is_over()
            if time.monotonic() - asked_at > STATE_SECONDS:
                asked_at = time.monotonic()
                state = self._cluster.job_state(job.id)
                has_run = has_run or state == "RUNNING"
                attempt.state = REQUEUED if has_run and state == "PENDING" else state
            time.sleep(POLL_SECONDS)
        attempt.seconds = None if hit_at is None else time.monotonic() - hit_at
        attempt.output = job.take_output()

    def _inflict_next(self, attempt: Attempt) -> bool:
        """Inflict the next fault if its step has come; return whether somebody was hit."""
        if not self._faults or attempt.last_step < self._faults[0].step:
            return False
        victim = self._saboteur.inflict(self._faults[0])
        if victim is None:
            return False
        attempt.hits.append((self._faults.pop(0), victim))
        return True

    def _submit(self) -> Job:
        """Type what a person types on the head of the cluster."""
        resume = ["--resume"] if (self.run / "checkpoints").exists() else []
        command = [sys.executable, "-m", "arl.cli", "train", "recipe.yaml", *resume, f"--time={LIMIT_MINUTES}"]
        environment = {"ARL_CACHE": str(self.directory / "cache"), "ARL_WATCH_SECONDS": "5"}
        done = self._cluster.run("env", "-C", str(self.directory), *command, seconds=180, environment=environment)
        printed = SUBMITTED.search(done.stdout)
        assert printed is not None, done.stdout + done.stderr
        return Job(printed["job"], Path(printed["log"]))

    def _wait_for_nodes(self) -> None:
        """Wait until every cut is over, Slurm uses every node again, and has ended what the last job left there."""

        def is_mended() -> bool:
            self._saboteur.end_what_is_over()
            return self._saboteur.is_done

        wait_for(is_mended, "the end of every cut", 200)
        for name in self._cluster.nodes:
            self._cluster.wait_for_node(name, "idle")
            wait_for(functools.partial(self._is_empty, name), f"the end of the last job's processes on {name}", 90)

    def _is_empty(self, name: str) -> bool:
        return not self._cluster.processes_of_jobs(name)
