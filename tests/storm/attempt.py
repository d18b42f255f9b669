"""Follow one start of a run, send its signal at the drawn moment, and wait for the end."""

import random
import re
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.storm.run_processes import RunProcess, processes_of_run
from tests.storm.shots import Shot

SIGNALS = {
    "kill": signal.SIGKILL,
    "terminate": signal.SIGTERM,
    "stop": signal.SIGSTOP,
    "pause": signal.SIGSTOP,
}
STEP_LINE = re.compile(r"^step +(\d+)", re.MULTILINE)
POLL_SECONDS = 0.05
FINISHED = 0


@dataclass
class Attempt:
    """Say what became of one start of a run.

    Args:
        shot: None: nothing was to happen to it.
        victim: None: nobody was hit.
        was_training: the run had shown a step when it was hit.
        code: exit code of the controller; negative: the signal that has killed it.
        seconds: from the signal to the end.
        steps: the first one that it has shown, and the last.
        left: what there was one second after the end.
        seconds_left: until nothing was left.
    """

    number: int
    shot: Shot | None
    victim: RunProcess | None = None
    was_training: bool = False
    code: int | None = None
    seconds: float = 0.0
    whole_seconds: float = 0.0
    steps: tuple[int, int] | None = None
    output: str = ""
    left: list[str] = field(default_factory=list)
    seconds_left: float = 0.0
    is_overdue: bool = False

    @property
    def has_finished(self) -> bool:
        """Return whether it has trained every step."""
        return self.code == FINISHED

    @property
    def diagnosis(self) -> str:
        """Return what the run says of its end."""
        at = f"\n{self.output}".rfind("\narl: ")
        return self.output[at:] if at >= 0 else ""


class Marksman:
    """Send one signal to a process of a run.

    Args:
        mark: of the run's processes.
        output: file with what the controller prints.
        stopped_seconds: after which a controller that was stopped goes on, because nobody could end it.
        source: chooses among processes of one role.
    """

    def __init__(
        self, attempt: Attempt, mark: str, output: Path, stopped_seconds: float, source: random.Random
    ) -> None:
        self._attempt = attempt
        self._mark = mark
        self._output = output
        self._stopped_seconds = stopped_seconds
        self._source = source
        self._seen_at: float | None = None  # when a process of the role was there
        self._fired_at: float | None = None
        self._goes_on_at: float | None = None

    def follow(self, process: subprocess.Popen[bytes], longest: float) -> None:
        """Wait until the run has ended, or kill it after so many seconds. Unblocked by the clock alone."""
        began = time.monotonic()
        attempt = self._attempt
        while process.poll() is None:
            self._read_steps()
            if self._fired_at is None and attempt.shot is not None:
                self._fire_if_due(attempt.shot)
            if self._goes_on_at is not None and time.monotonic() > self._goes_on_at:
                self._let_go_on()
            if time.monotonic() - began > longest:
                attempt.is_overdue = True
                process.kill()
            time.sleep(POLL_SECONDS)
        ended = time.monotonic()
        self._read_steps()
        attempt.code = process.wait()
        attempt.whole_seconds = round(ended - began, 1)
        attempt.seconds = 0.0 if self._fired_at is None else round(ended - self._fired_at, 1)

    def _read_steps(self) -> None:
        self._attempt.output = self._output.read_text(errors="replace")
        steps = [int(step) for step in STEP_LINE.findall(self._attempt.output)]
        self._attempt.steps = (steps[0], steps[-1]) if steps else None

    def _fire_if_due(self, shot: Shot) -> None:
        """Send the signal if its moment has come and somebody has the role."""
        steps = self._attempt.steps
        if shot.phase == "training" and (steps is None or steps[1] - steps[0] + 1 < shot.step):
            return
        found = [each for each in processes_of_run(self._mark) if each.role == shot.role]
        if not found:
            return
        now = time.monotonic()
        self._seen_at = self._seen_at or now
        if shot.phase == "start-up" and now - self._seen_at < shot.delay:
            return
        victim = self._source.choice(found)
        try:
            victim.process.send_signal(SIGNALS[shot.action])
        except psutil.NoSuchProcess:
            return
        self._attempt.victim = victim
        self._attempt.was_training = steps is not None
        self._fired_at = now
        if shot.action == "pause":
            self._goes_on_at = now + shot.seconds
        elif shot.action == "stop" and shot.role == "controller":
            self._goes_on_at = now + self._stopped_seconds

    def _let_go_on(self) -> None:
        self._goes_on_at = None
        assert self._attempt.victim is not None
        try:
            self._attempt.victim.process.send_signal(signal.SIGCONT)
        except psutil.NoSuchProcess:  # the run has replaced it meanwhile
            return
