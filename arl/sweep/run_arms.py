"""Run the arms of a sweep as `arl train` processes, several at a time.

runs that are not finished ─► a worker for each share of the machine ─► arl train [--resume] ─► run directory
                                                     │                        └─► logs/<arm>/seed-<n>.log
                                                     └─► metrics.jsonl, as it grows ─► SweepDisplay
"""

import asyncio
import contextlib
import shutil
import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from msgspec import Struct

from arl.clock import deadline, in_thread, now
from arl.config.eval_section import HELD_OUT
from arl.config.recipe import Recipe
from arl.errors import ArlError
from arl.files import require_lock, try_lock
from arl.launch.base import Command
from arl.launch.devices import Share
from arl.launch.process import LocalProcess, start_process
from arl.metrics.run_files import LOCK, METRICS_FILE
from arl.run.clean_stop import RESUME_WITH
from arl.sweep.axes import write_override
from arl.sweep.sweep_directory import SweepRun
from arl.sweep.sweep_display import RunProgress, SweepDisplay

PROGRAM = (sys.executable, "-m", "arl.cli")
POLL_SECONDS = 0.5
GONE_SECONDS = 60.0  # for a process of a killed sweep to be gone
SPARE_SECONDS = 5.0  # for `arl train` to exit, beyond deadlines.stop and deadlines.shutdown


class FailedRun(Struct, frozen=True):
    """Hold a run that failed, and why."""

    run: SweepRun
    why: str


class ArmRunner:
    """Run what is not finished yet.

    Args:
        runs: in the order in which they start.
        shares: what each of the runs that go on at a time may use.
    """

    def __init__(self, runs: Sequence[SweepRun], shares: Sequence[Share], display: SweepDisplay) -> None:
        self._waiting = deque(run for run in runs if run.state != "finished")
        self._shares = shares
        self._display = display
        self.failed: list[FailedRun] = []

    async def run(self) -> list[FailedRun]:
        """Run everything to its end; return the runs that failed."""
        async with asyncio.TaskGroup() as tasks:
            for share in self._shares:
                tasks.create_task(self._work(share), name=f"sweep worker {share}")
        return self.failed

    async def _work(self, share: Share) -> None:
        """Consume runs; wait for each one's process; unblocked by its end. Ends when no run is waiting."""
        while self._waiting:
            run = self._waiting.popleft()
            try:
                await self._run(run, share)
            except (ArlError, OSError) as error:
                self._fail(run, str(error))

    def _fail(self, run: SweepRun, why: str) -> None:
        self.failed.append(FailedRun(run, why))
        self._display.failed(run, why)

    async def _run(self, run: SweepRun, share: Share) -> None:
        is_resumed = await _prepare(run)
        began = now()
        recipe = run.arm.recipe
        suite = recipe.eval.decides if recipe.eval.every else HELD_OUT  # by which its versions are compared
        progress = RunProgress(run.directory / METRICS_FILE, recipe.train.steps, suite)
        last_line = _LastLine()
        self._display.started(run, progress)
        async with _started(run, share, is_resumed, last_line) as process:
            end = await self._follow(run, process, progress)
        if process.exit_code != 0 or run.state != "finished":
            remedy = f"; to run it anew, remove {run.directory}" if is_resumed else ""
            self._fail(run, f"{end}: {last_line.text}; log {run.log}{remedy}")
            return
        self._show(run, progress)
        self._display.finished(run, progress, now() - began)

    async def _follow(self, run: SweepRun, process: LocalProcess, progress: RunProgress) -> str:
        """Show the run until its process has ended; return how it ended."""
        ending = asyncio.create_task(process.ended(), name=f"end of {run}")
        try:
            while not ending.done():
                await asyncio.wait({ending}, timeout=POLL_SECONDS)
                self._show(run, progress)
            return ending.result()
        finally:
            ending.cancel()

    def _show(self, run: SweepRun, progress: RunProgress) -> None:
        if progress.refresh():
            self._display.evaluated(run, progress)


class _LastLine:
    """Keep the last line of a process's output that says something; a sweep resumes its runs by itself."""

    def __init__(self) -> None:
        self.text = "it wrote nothing"

    def __call__(self, line: str) -> None:
        if line and not line.startswith(RESUME_WITH):
            self.text = line


@contextlib.asynccontextmanager
async def _started(run: SweepRun, share: Share, is_resumed: bool, last_line: _LastLine) -> AsyncIterator[LocalProcess]:
    """Start the run; at the end of the context it is stopped, with everything that it has started."""
    run.log.parent.mkdir(parents=True, exist_ok=True)
    command = Command(_argv(run, is_resumed), share.environment)
    process = await start_process("arl train", command, run.log, last_line)
    try:
        yield process
    finally:
        await asyncio.shield(process.stop(_patience(run.arm.recipe)))


def _patience(recipe: Recipe) -> float:
    """Return the seconds that a run has from SIGTERM to SIGKILL. In virtual time it saves nothing, and ends at once."""
    deadlines = recipe.deadlines
    saving = 0.0 if recipe.world_traits.virtual_time else deadlines.stop
    return saving + deadlines.shutdown + SPARE_SECONDS


def _argv(run: SweepRun, is_resumed: bool) -> tuple[str, ...]:
    settings = {
        "name": run.name,
        "seed": run.seed,
        "output.directory": str(run.directory.parent),
    }
    overrides = [part for field, value in settings.items() for part in ("--set", write_override(field, value))]
    resume = ["--resume"] if is_resumed else []
    return (*PROGRAM, "train", str(run.recipe_file), *overrides, *resume)


async def _prepare(run: SweepRun) -> bool:
    """Make sure that the run can start; return whether it goes on from a checkpoint.

    A run that was killed before its first checkpoint has nothing to go on from, so its directory is removed.

    Raises:
        DeadlineError: it still runs.
        InputError: what has the name of its lock is no regular file.
    """
    if run.state == "new":
        return False
    await _wait_until_gone(run.directory / LOCK)
    if not run.has_checkpoint:
        await in_thread(shutil.rmtree, run.directory)
        return False
    return True


async def _wait_until_gone(lock: Path) -> None:
    """Wait until no process holds the lock of a run. One that was killed holds it until the kernel has removed it.

    Raises:
        DeadlineError: one still does.
        InputError: what has the name of the lock is no regular file.
    """
    with require_lock(lock) as file:  # makes it, if the run was killed before it did
        async with deadline(GONE_SECONDS, "sweep", f"the process that runs {lock.parent} to end"):
            while not try_lock(file):  # noqa: ASYNC110 - the lock of another process has no event
                await asyncio.sleep(POLL_SECONDS)
