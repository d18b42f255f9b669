"""Follow one start of a run, send its signal at the drawn moment, and wait for the end."""

import contextlib
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
    """

    number: int
    shot: Shot | None
    victim: RunProcess | None = None
    was_training: bool = False
    code: int | None = None
    seconds: float = 0.0
    steps: tuple[int, int] | None = None
    output: str = ""
    left: list[str] = field(default_factory=list)
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

    def read(self, output: Path) -> None:
        """Read what the controller has printed."""
        self.output = output.read_text(errors="replace")
        steps = [int(step) for step in STEP_LINE.findall(self.output)]
        self.steps = (steps[0], steps[-1]) if steps else None


def follow(
    attempt: Attempt,
    process: "subprocess.Popen[bytes]",
    mark: str,
    output: Path,
    stopped_seconds: float,
    longest: float,
    source: random.Random,
) -> None:
    """Send the signal of an attempt, and wait until the run has ended. Unblocked by the clock alone.

    Args:
        mark: of the run's processes.
        output: file with what the controller prints.
        stopped_seconds: after which a controller that was stopped goes on, because nobody could end it.
        longest: seconds after which the run is killed.
        source: chooses among processes of one role.
    """
    began = time.monotonic()
    seen_at: float | None = None  # when a process of the role was there
    fired_at = began
    goes_on_at: float | None = None
    while process.poll() is None:
        time.sleep(POLL_SECONDS)
        now = time.monotonic()
        attempt.read(output)
        if now - began > longest:
            attempt.is_overdue = True
            process.kill()
        if goes_on_at is not None and now > goes_on_at and attempt.victim is not None:
            goes_on_at = None
            with contextlib.suppress(psutil.NoSuchProcess):  # the run has replaced it meanwhile
                attempt.victim.process.send_signal(signal.SIGCONT)
        shot = attempt.shot
        if shot is None or attempt.victim is not None or not _has_trained(attempt, shot):
            continue
        found = [each for each in processes_of_run(mark) if each.role == shot.role]
        if found and seen_at is None:
            seen_at = now
        if not found or seen_at is None or now - seen_at < shot.delay:
            continue
        victim = source.choice(found)
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.process.send_signal(SIGNALS[shot.action])
            attempt.victim = victim
            attempt.was_training = attempt.steps is not None
            fired_at = now
            if shot.action == "pause":
                goes_on_at = now + shot.seconds
            elif shot.action == "stop" and shot.role == "controller":
                goes_on_at = now + stopped_seconds
    attempt.read(output)
    attempt.code = process.wait()
    attempt.seconds = round(time.monotonic() - fired_at, 1)


def _has_trained(attempt: Attempt, shot: Shot) -> bool:
    """Return whether an attempt has trained the steps after which it is hit; at start-up there are none."""
    if shot.phase == "start-up":
        return True
    return attempt.steps is not None and attempt.steps[1] - attempt.steps[0] + 1 >= shot.step
