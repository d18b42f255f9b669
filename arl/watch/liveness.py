"""Tell whether the controller of a run still runs, from any host that sees the run's directory.

run.lock is held ─► it runs          status.json is new ─► it runs          neither: what is known of its process
"""

import time
from pathlib import Path

from arl.files import is_locked
from arl.metrics.run_files import LOCK, RECIPE
from arl.metrics.run_status import SILENT_SECONDS, RunStatus, read_status


class StatusWatch:
    """Read the status of a run again and again, and count for how long nothing new has come.

    Clocks of two hosts may differ by more than these seconds, so the age of a status counts only where this host has
    written it. Otherwise this host's clock counts from the moment at which the status was first seen here.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._newest: RunStatus | None = None
        self._seen_at = 0.0  # as time.monotonic()

    def read(self) -> RunStatus:
        """Read it.

        Raises:
            InputError: this is no run, or one that writes no status.
            DataError: the file is damaged.
        """
        status = read_status(self._run)
        if status != self._newest:
            self._newest = status
            self._seen_at = time.monotonic()
        return status

    @property
    def silence(self) -> float:
        """Return for how many seconds nothing new has come."""
        assert self._newest is not None, "read() comes first"
        age = time.time() - self._newest.time if self._newest.is_of_this_host else 0.0
        return max(age, time.monotonic() - self._seen_at)

    @property
    def is_silent(self) -> bool:
        """Return whether the controller should have written another status since."""
        return self.silence > SILENT_SECONDS


def describe_silence(run: Path, status: RunStatus, seconds: float) -> str:
    """Describe a status after which none has come for `seconds`: is its controller gone, or does it hang?"""
    place = f"process {status.pid} on {status.host}"
    silence = f"the controller ({place}) has not written for {seconds:.0f} s"
    if is_locked(run / LOCK):
        return f"{silence}; the run's lock is held, so it runs, and hangs or is stopped"
    if not status.is_of_this_host:
        return f"{silence}; whether it still runs can be seen on {status.host} alone"
    has_checkpoint = any(run.glob("checkpoints/step_*"))
    resume = f"; `arl train {run}/{RECIPE} --resume` goes on from its newest checkpoint" if has_checkpoint else ""
    return f"{silence}; no process holds the run's lock any more: it was killed{resume}"
