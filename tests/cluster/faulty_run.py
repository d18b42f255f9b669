"""Run `arl train` on a Slurm cluster while faults happen, and resume it until it has finished.

submit ─► job ─► its output shows a step ─► the next fault ─► … ─► the job ends ─► submit again with --resume
                                                                       │
                                                                Attempt: how, how long after the fault, what it said
"""

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
SCRIPT = """\
#!/bin/bash
{python} -m arl.cli train recipe.yaml "$@"
"""
OVER = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT", "OUT_OF_MEMORY")
LIMIT_MINUTES = 4  # of a job: only a controller that never goes on needs it
STEP_LINE = re.compile(r"^step +(\d+)", re.MULTILINE)
MOST_ATTEMPTS = 6
POLL_SECONDS = 0.1
STATE_SECONDS = 1.0  # between two questions to Slurm


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
        """Return what the run, or the shell that started it, says of its end."""
        lines = self.output.splitlines()
        first = next((number for number, line in enumerate(lines) if _tells_an_end(line)), len(lines))
        return "\n".join(lines[first:])


def _tells_an_end(line: str) -> bool:
    return line.startswith(("arl: ", "slurmstepd", "srun: error")) or "Killed" in line or "Terminated" in line


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
        recipe = RECIPE.replace("STEPS", str(steps)).replace("CHECKPOINTS", str(max(2, steps // 20)))
        recipe = recipe.replace("NODES", str(len(cluster.nodes)))
        (directory / "recipe.yaml").write_text(recipe)
        (directory / "job.sh").write_text(SCRIPT.format(python=sys.executable))

    @property
    def run(self) -> Path:
        """Return the run directory."""
        return self.directory / "runs" / "small"

    def to_the_end(self) -> None:
        """Run, and resume, until the run has finished."""
        while not (self.attempts and self.attempts[-1].has_finished):
            assert len(self.attempts) < MOST_ATTEMPTS, f"not finished by {MOST_ATTEMPTS} jobs"
            self._wait_for_nodes()
            self._attempt()
        self._wait_for_nodes()

    def _attempt(self) -> None:
        number = len(self.attempts)
        attempt = Attempt()
        self.attempts.append(attempt)
        log = self.directory / f"job-{number}.out"
        job = self._submit(log, resume=(self.run / "checkpoints").exists())
        hit_at = None
        asked_at = 0.0
        while True:
            attempt.output = log.read_text(errors="replace") if log.exists() else ""
            attempt.last_step = max((int(step) for step in STEP_LINE.findall(attempt.output)), default=0)
            if self._inflict_next(attempt):
                hit_at = time.monotonic()
            self._saboteur.end_what_is_over()
            if time.monotonic() - asked_at > STATE_SECONDS:
                asked_at = time.monotonic()
                attempt.state = self._cluster.job_state(job)
            if attempt.state in OVER:
                break
            time.sleep(POLL_SECONDS)
        attempt.output = log.read_text(errors="replace")
        attempt.seconds = None if hit_at is None else time.monotonic() - hit_at

    def _inflict_next(self, attempt: Attempt) -> bool:
        """Inflict the next fault if its step has come; return whether somebody was hit."""
        if not self._faults or attempt.last_step < self._faults[0].step:
            return False
        victim = self._saboteur.inflict(self._faults[0])
        if victim is None:
            return False
        attempt.hits.append((self._faults.pop(0), victim))
        return True

    def _submit(self, log: Path, resume: bool) -> str:
        options = [
            "--parsable", f"--nodes={len(self._cluster.nodes)}", "--exclusive", "--no-requeue", "--no-kill", f"--time={LIMIT_MINUTES}",
            f"--chdir={self.directory}", f"--output={log}", "--open-mode=append",
        ]  # fmt: skip
        words = [str(self.directory / "job.sh"), *(["--resume"] if resume else [])]
        environment = {"ARL_CACHE": str(self.directory / "cache")}
        return self._cluster.run("sbatch", *options, *words, environment=environment).stdout.strip()

    def _wait_for_nodes(self) -> None:
        """Wait until every cut is over, and Slurm uses every node again."""

        def is_mended() -> bool:
            self._saboteur.end_what_is_over()
            return self._saboteur.is_done

        wait_for(is_mended, "the end of every cut", 200)
        for name in self._cluster.nodes:
            self._cluster.wait_for_node(name, "idle")
