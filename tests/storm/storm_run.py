"""Run `arl train` on this machine while its processes get signals, and resume it until every signal was sent.

arl train ─► a process of the role is there, or a step is shown ─► the signal ─► it recovers: finished, and extended
     ▲                                                                        └► it ends, with a diagnosis
     └───────────────────────── arl train --resume ◄── what is left behind? ◄─────────┴──────────┘
"""

import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.storm.attempt import Attempt, follow
from tests.storm.run_processes import look_for_remains, start_marked
from tests.storm.shots import Shot, Variant

PROBLEMS = 2  # of a step
GROUP = 2
BOUND = 2
STEPS_OF_AN_ATTEMPT = 40
EVALUATED = 4  # problems
EVALUATE_EVERY = 20  # steps
DEADLINES = {
    "startup": 60.0,
    "step": 20.0,
    "swap": 10.0,
    "generate": 10.0,
    "reward": 5.0,
    "stop": 20.0,
}
RECIPE = """\
name: storm
mode: {mode}
model:
  tiny: {{hidden_size: 32, layers: 1, heads: 2, intermediate_size: 64}}
data: {{task: running_checksum, options: {{size: 2000}}}}
rollout: {{problems_per_step: {problems}, group_size: {group}, staleness: {bound}, max_new_tokens: 8}}
train: {{steps: {steps}, minibatches: 1, learning_rate: 1.5e-4, ranks: {ranks}, threads: 1}}
reward: {{workers: 1}}
engine: {{kind: {kind}, replicas: {replicas}, slots: 32, stream_interval: 4, threads: 1, max_restarts: 20}}
sync: {{transport: {transport}}}
eval: {{problems: {evaluated}, every: {every}}}
output: {{checkpoint_every: 5}}
deadlines: {{{deadlines}}}
"""
SGLANG_STARTUP = 240.0  # seconds: it imports and compiles for a minute on an idle machine
MOST_MISSES = 3  # attempts in which no process had the role at the moment of a shot
STOPPED_FACTOR = 1.25  # of deadlines.step: a stopped controller goes on after it


class StormRun:
    """Hold one run with its attempts.

    Args:
        directory: of its files; must not exist.
        patience: factor of every deadline, for a machine that is busy otherwise.
    """

    def __init__(
        self, directory: Path, variant: Variant, shots: Sequence[Shot], patience: float, source: random.Random
    ) -> None:
        self.directory = directory
        self.mark = str(directory)  # of the run's processes
        self.variant = variant
        self.attempts: list[Attempt] = []
        self.steps = STEPS_OF_AN_ATTEMPT
        waits = DEADLINES | ({"startup": SGLANG_STARTUP} if variant.kind == "sglang" else {})
        self.deadlines = {name: seconds * patience for name, seconds in waits.items()}
        self._patience = patience
        self._shots = list(shots)
        self._source = source
        directory.mkdir(parents=True)

    @property
    def run(self) -> Path:
        """Return the run directory."""
        return self.directory / "runs" / "storm"

    @property
    def has_finished(self) -> bool:
        """Return whether the last attempt has trained every step."""
        return bool(self.attempts) and self.attempts[-1].has_finished

    def to_the_end(self) -> None:
        """Run, resume and extend until every shot was fired and the run has finished."""
        misses = 0
        while self._shots or not self.has_finished:
            shot = self._shots[0] if self._shots else None
            attempt = self._attempt(shot)
            misses += 1
            if attempt.victim is not None or misses == MOST_MISSES:
                self._shots = self._shots[1:]
                misses = 0
            if attempt.is_overdue or (attempt.victim is None and not attempt.has_finished):
                break  # the audit says so

    def _attempt(self, shot: Shot | None) -> Attempt:
        if self.has_finished:
            self.steps += STEPS_OF_AN_ATTEMPT
        attempt = Attempt(len(self.attempts), shot)
        self.attempts.append(attempt)
        output = self.directory / f"output-{attempt.number}.txt"
        waits = self.deadlines
        stopped_seconds = STOPPED_FACTOR * waits["step"]
        process = self._start(output)
        try:
            longest = 4 * waits["startup"] + 3 * waits["step"] + 2 * waits["swap"] + waits["generate"]
            follow(attempt, process, self.mark, output, stopped_seconds, longest, self._source)
        finally:
            process.kill()
            process.wait()
        attempt.left = look_for_remains(self.mark, self.directory / "tmp", self._patience)
        return attempt

    def _start(self, output: Path) -> subprocess.Popen[bytes]:
        """Type what a person types. A run without a checkpoint begins anew."""
        resume = ["--resume"] if any(self.run.glob("checkpoints/step_*")) else []
        if self.run.exists() and not resume:
            self.run.rename(self.directory / f"begun-{len(self.attempts)}")
        (self.directory / "recipe.yaml").write_text(self._recipe())
        argv = [sys.executable, "-m", "arl.cli", "train", "recipe.yaml", *resume]
        return start_marked(argv, self.mark, self.directory, output)

    def _recipe(self) -> str:
        return RECIPE.format(
            **asdict(self.variant),
            problems=PROBLEMS,
            group=GROUP,
            bound=BOUND,
            steps=self.steps,
            evaluated=EVALUATED if self.variant.evaluates else 0,
            every=EVALUATE_EVERY if self.variant.evaluates else 0,
            deadlines=", ".join(f"{name}: {seconds}" for name, seconds in self.deadlines.items()),
        )
