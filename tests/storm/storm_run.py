"""Run `arl train` on this machine while its processes get signals, and resume it until every signal was sent.

arl train ─► a process of the role is there, or a step is shown ─► the signal ─► it recovers: finished, and extended
     ▲                                                                        └► it ends, with a diagnosis
     └───────────────────────── arl train --resume ◄── what is left behind? ◄─────────┴──────────┘
"""

import contextlib
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from tests.storm.run_processes import RunProcess, look_for_remains, processes_of_run, start_marked
from tests.storm.shots import Shot, Variant

SIGNALS = {"kill": signal.SIGKILL, "terminate": signal.SIGTERM}  # every other action begins with SIGSTOP
STEP_LINE = re.compile(r"^step +(\d+)", re.MULTILINE)
POLL_SECONDS = 0.05
FINISHED = 0
PROBLEMS = 2  # of a step
STEPS_OF_AN_ATTEMPT = 40
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
rollout: {{problems_per_step: {problems}, group_size: 2, staleness: 2, max_new_tokens: 8}}
train: {{steps: {steps}, minibatches: 1, learning_rate: 1.5e-4, ranks: {ranks}, threads: 1}}
reward: {{workers: 1}}
engine: {{kind: {kind}, replicas: {replicas}, slots: 32, stream_interval: 4, threads: 1, max_restarts: 20}}
sync: {{transport: {transport}}}
eval: {{problems: {evaluated}, every: {every}}}
output: {{checkpoint_every: 5}}
deadlines: {{{deadlines}}}
"""
SGLANG_STARTUP = 240.0  # seconds: it imports and compiles for a minute on an idle machine
STOPPED_FACTOR = 1.25  # of deadlines.step: a stopped controller, which nobody could end, goes on after it


@dataclass
class Attempt:
    """Say what became of one start of a run.

    Args:
        shot: None: nothing was to happen to it.
        victim: None: nobody was hit.
        was_training: the run had shown a step when it was hit.
        code: exit code of the controller; negative: the signal that has killed it.
        seconds: from the signal to the end.
        steps: that it has shown.
        left: what there was one second after the end.
    """

    shot: Shot | None
    victim: RunProcess | None = None
    was_training: bool = False
    code: int | None = None
    seconds: float = 0.0
    steps: list[int] = field(default_factory=list)
    output: str = ""
    left: list[str] = field(default_factory=list)
    is_overdue: bool = False

    @property
    def diagnosis(self) -> str:
        """Return what the run says of its end."""
        at = f"\n{self.output}".rfind("\narl: ")
        return self.output[at:] if at >= 0 else ""


class StormRun:
    """Hold one run with its attempts.

    Args:
        directory: of its files; must not exist.
        patience: factor of every deadline, for a machine that is busy otherwise.
        source: chooses among processes of one role.
    """

    def __init__(
        self, directory: Path, variant: Variant, shots: Sequence[Shot], patience: float, source: random.Random
    ) -> None:
        self.run = directory / "runs" / "storm"
        self.variant = variant
        self.attempts: list[Attempt] = []
        self.steps = STEPS_OF_AN_ATTEMPT
        waits = DEADLINES | ({"startup": SGLANG_STARTUP} if variant.kind == "sglang" else {})
        self.deadlines = {name: seconds * patience for name, seconds in waits.items()}
        self._directory = directory
        self._mark = str(directory)  # of the run's processes
        self._patience = patience
        self._shots = list(shots)
        self._source = source
        directory.mkdir(parents=True)

    @property
    def has_finished(self) -> bool:
        """Return whether the last attempt has trained every step."""
        return bool(self.attempts) and self.attempts[-1].code == FINISHED

    def to_the_end(self) -> None:
        """Run, resume and extend until every shot was fired, or no process had its role, and the run has finished."""
        while self._shots or not self.has_finished:
            if self.has_finished:
                self.steps += STEPS_OF_AN_ATTEMPT
            attempt = Attempt(self._shots.pop(0) if self._shots else None)
            self.attempts.append(attempt)
            output = self._directory / f"output-{len(self.attempts)}.txt"
            process = self._start(output)
            try:
                self._follow(attempt, process, output)
            finally:
                process.kill()
            attempt.left = look_for_remains(self._mark, self._directory / "tmp", self._patience)
            if attempt.is_overdue or (attempt.victim is None and not self.has_finished):
                break  # the audit says so

    def _follow(self, attempt: Attempt, process: subprocess.Popen[bytes], output: Path) -> None:
        """Send the signal of an attempt, and wait until the run has ended. Unblocked by the clock alone."""
        waits = self.deadlines
        began = time.monotonic()
        is_there_since: float | None = None  # a process of the role
        fired_at = began
        goes_on_at: float | None = None
        while process.poll() is None:
            time.sleep(POLL_SECONDS)
            now = time.monotonic()
            self._read(attempt, output)
            if now - began > 4 * waits["startup"] + 3 * waits["step"] + 2 * waits["swap"] + waits["generate"]:
                attempt.is_overdue = True
                process.kill()
            shot = attempt.shot
            if attempt.victim is not None:
                if goes_on_at is not None and now > goes_on_at:
                    goes_on_at = None
                    with contextlib.suppress(psutil.NoSuchProcess):  # the run has replaced it meanwhile
                        attempt.victim.process.send_signal(signal.SIGCONT)
                continue
            if shot is None or (shot.phase == "training" and len(attempt.steps) < shot.step):
                continue
            found = [each for each in processes_of_run(self._mark) if each.role == shot.role]
            if not found:
                continue
            is_there_since = is_there_since or now
            if shot.phase == "start-up" and now - is_there_since < shot.delay:
                continue
            victim = self._source.choice(found)
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.process.send_signal(SIGNALS.get(shot.action, signal.SIGSTOP))
                attempt.victim = victim
                attempt.was_training = bool(attempt.steps)
                fired_at = now
                if shot.action == "pause":
                    goes_on_at = now + shot.seconds
                elif shot.action == "stop" and shot.role == "controller":
                    goes_on_at = now + STOPPED_FACTOR * waits["step"]
        self._read(attempt, output)
        attempt.code = process.wait()
        attempt.seconds = round(time.monotonic() - fired_at, 1)

    def _read(self, attempt: Attempt, output: Path) -> None:
        attempt.output = output.read_text(errors="replace")
        attempt.steps = [int(step) for step in STEP_LINE.findall(attempt.output)]

    def _start(self, output: Path) -> subprocess.Popen[bytes]:
        """Type what a person types. A run without a checkpoint begins anew."""
        resume = ["--resume"] if any(self.run.glob("checkpoints/step_*")) else []
        if self.run.exists() and not resume:
            self.run.rename(self._directory / f"begun-{len(self.attempts)}")
        recipe = RECIPE.format(
            **asdict(self.variant),
            problems=PROBLEMS,
            steps=self.steps,
            evaluated=4 if self.variant.evaluates else 0,
            every=20 if self.variant.evaluates else 0,
            deadlines=", ".join(f"{name}: {seconds}" for name, seconds in self.deadlines.items()),
        )
        (self._directory / "recipe.yaml").write_text(recipe)
        argv = [sys.executable, "-m", "arl.cli", "train", "recipe.yaml", *resume]
        return start_marked(argv, self._mark, self._directory, output)
