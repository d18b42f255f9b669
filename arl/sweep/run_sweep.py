"""Run a sweep from its request to its summary: its arms as `arl train` processes, several at a time.

request ─► check_arms ─► open_directory ─► a worker for each share of the machine ─► table of accuracies
                │                             └─► arl train [--resume] ─► run directory, logs/<arm>/seed-<n>.log
                └─► --dry-run: the arms, their states
"""

import asyncio
import os
import shutil
import statistics
import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from arl import clock
from arl.clock import deadline, in_thread, now
from arl.errors import ArlError, RunError
from arl.files import is_locked
from arl.launch.base import Node
from arl.launch.devices import Share, core_numbers, divide, visible_cores, visible_devices
from arl.launch.placement import place
from arl.launch.process import start_process
from arl.metrics.run_files import LOCK, SUMMARY
from arl.run.failures import RESUME_WITH
from arl.sweep.directory import SweepRun, check_directory, list_runs, open_directory
from arl.sweep.request import SweepRequest, write_override
from arl.sweep.sweep_arms import Sweep, check_arms

PROGRAM = (sys.executable, "-m", "arl.cli")
POLL_SECONDS = 0.5
GONE_SECONDS = 60.0  # for a process of a killed sweep to be gone
SPARE_SECONDS = 5.0  # for `arl train` to exit, beyond the seconds that a run has to save and to end


class PlannedSweep:
    """Hold a sweep that was checked and can start.

    Raises:
        InputError: an arm cannot run, the machine is too small, or the directory is another sweep's.
    """

    def __init__(self, request: SweepRequest, console: Console) -> None:
        self.console = console
        self.sweep = check_arms(request, self.note)
        self.directory = Path(self.sweep.base.output.directory) / request.name
        self.runs = list_runs(self.directory, self.sweep)
        self.shares = _shares(request, self.sweep, len(self.runs))
        check_directory(self.directory, self.sweep)

    def note(self, text: str) -> None:
        """Print one line."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


def dry_run(request: SweepRequest, console: Console) -> None:
    """Check everything and print the arms and their states. Nothing is started or written.

    Raises:
        InputError: see PlannedSweep.
    """
    planned = PlannedSweep(request, console)
    planned.note(f"sweep {request.name}, in {planned.directory}")
    table = Table("arm", "settings", "seeds", "state", box=None, pad_edge=False)
    for arm in planned.sweep.arms:
        of_arm = [run for run in planned.runs if run.arm is arm]
        settings = [write_override(field, value) for field, value in arm.settings.items()]
        states = Counter(run.state for run in of_arm)
        seeds = ", ".join(str(run.seed) for run in of_arm)
        table.add_row(arm.name, "\n".join(settings), seeds, ", ".join(f"{n} {state}" for state, n in states.items()))
    console.print(table)
    left = sum(run.state != "finished" for run in planned.runs)
    planned.note(f"{left} of {len(planned.runs)} runs to do, {len(planned.shares)} at a time")


def run_sweep(request: SweepRequest, console: Console) -> Path:
    """Run what is not finished, and return the directory of the sweep.

    Raises:
        InputError: see PlannedSweep; or another process runs this sweep. Nothing was started.
        RunError: runs have failed; all others are finished.
    """
    planned = PlannedSweep(request, console)
    runner = ArmRunner(planned.runs, planned.shares, planned.note)
    with open_directory(planned.directory, planned.sweep):
        planned.note(f"sweep directory {planned.directory}: {runner.finished} of {len(planned.runs)} runs are finished")
        try:
            clock.run(runner.run)
        except KeyboardInterrupt:
            planned.note("the same command goes on with this sweep")
            raise
    table = Table("arm", "seeds", "accuracy", box=None, pad_edge=False)  # the mean over the finished seeds
    for arm in planned.sweep.arms:
        of_arm = [run for run in planned.runs if run.arm is arm]
        finished = [run for run in of_arm if run.state == "finished"]
        found = [accuracy for accuracy in map(_accuracy, finished) if accuracy is not None]
        table.add_row(arm.name, f"{len(finished)}/{len(of_arm)}", _number(statistics.fmean(found) if found else None))
    console.print(table)
    if runner.failed:
        lines = [f"{len(runner.failed)} of {len(planned.runs)} runs failed; the same command tries them again:"]
        raise RunError("\n".join([*lines, *(f"    {failure}" for failure in runner.failed)]))
    planned.note(f"arl report {planned.directory}")
    return planned.directory


class ArmRunner:
    """Run what is not finished yet; `failed` says which runs failed, and why."""

    def __init__(self, runs: Sequence[SweepRun], shares: Sequence[Share], note: Callable[[str], None]) -> None:
        self._waiting = deque(run for run in runs if run.state != "finished")
        self._shares = shares
        self._note = note
        self._total = len(runs)
        self.finished = len(runs) - len(self._waiting)
        self.failed: list[str] = []

    async def run(self) -> None:
        """Run everything to its end."""
        async with asyncio.TaskGroup() as tasks:
            for share in self._shares:
                tasks.create_task(self._work(share), name=f"sweep worker {share}")

    async def _work(self, share: Share) -> None:
        """Consume runs; wait for each one's process; unblocked by its end. Ends when no run is waiting."""
        while self._waiting:
            run = self._waiting.popleft()
            began = now()
            try:
                is_resumed = await _prepare(run)
                self._note(f"{run}: {'goes on from its newest checkpoint' if is_resumed else 'starts'}; log {run.log}")
                why = await _train(run, share, is_resumed)
            except (ArlError, OSError) as error:
                why = str(error)
            if why:
                self.failed.append(f"{run}: {why}")
                self._note(f"{run}: failed: {why}")
                continue
            self.finished += 1
            count = f"{self.finished} of {self._total} runs"
            self._note(f"{run}: finished in {now() - began:.0f} s, accuracy {_number(_accuracy(run))}; {count}")


async def _train(run: SweepRun, share: Share, is_resumed: bool) -> str:
    """Train one run in a process; return why it failed, empty if it has finished."""
    said = ["it wrote nothing"]  # its last line that says something; a sweep resumes its runs by itself

    def keep(line: str) -> None:
        if line and not line.startswith(RESUME_WITH):
            said[0] = line

    run.log.parent.mkdir(parents=True, exist_ok=True)
    labels = {  # by which wandb groups the runs
        "WANDB_RUN_GROUP": os.environ.get("WANDB_RUN_GROUP", run.sweep.name),
        "WANDB_TAGS": ",".join(filter(None, [os.environ.get("WANDB_TAGS"), run.arm.name])),
    }
    environment = {**share.environment, **labels}
    process = await start_process("arl train", train_arguments(run, is_resumed), environment, run.log, keep)
    try:
        end = await process.ended()
    finally:
        # From SIGTERM to SIGKILL. In virtual time a run saves nothing, and ends at once.
        deadlines = run.arm.recipe.deadlines
        saving = 0.0 if run.arm.recipe.world_traits.virtual_time else deadlines.stop
        await asyncio.shield(process.stop(saving + deadlines.shutdown + SPARE_SECONDS))
    if process.exit_code == 0 and run.state == "finished":
        return ""
    remedy = f"; to run it anew, remove {run.directory}" if is_resumed else ""
    return f"{end}: {said[0]}; log {run.log}{remedy}"


def train_arguments(run: SweepRun, is_resumed: bool) -> tuple[str, ...]:
    """Return the command line of a run."""
    settings = {"name": run.name, "seed": run.seed, "output.directory": str(run.directory.parent)}
    overrides = [part for field, value in settings.items() for part in ("--set", write_override(field, value))]
    return (*PROGRAM, "train", str(run.recipe_file), *overrides, *(["--resume"] if is_resumed else []))


async def _prepare(run: SweepRun) -> bool:
    """Make sure that the run can start; return whether it goes on from a checkpoint.

    A run that was killed before its first checkpoint has nothing to go on from, so its directory is removed.

    Raises:
        DeadlineError: it still runs.
    """
    if run.state == "new":
        return False
    async with deadline(GONE_SECONDS, "sweep", f"the process that runs {run.directory} to end"):
        while is_locked(run.directory / LOCK):  # noqa: ASYNC110 - no event tells that a killed process is gone
            await asyncio.sleep(POLL_SECONDS)
    if not run.has_checkpoint:
        await in_thread(shutil.rmtree, run.directory)
    return run.has_checkpoint


def _shares(request: SweepRequest, sweep: Sweep, num_runs: int) -> list[Share]:
    """Divide the machine. Runs in one process compute with one thread, and need no cores of their own.

    Raises:
        InputError: there are too few devices for an arm.
    """
    if all(arm.recipe.world_traits.one_process for arm in sweep.arms):
        return [Share()] * min(request.jobs or visible_cores(), num_runs)
    shares = divide(min(request.jobs or 1, num_runs), core_numbers(), visible_devices())
    smallest = min(shares, key=lambda share: len(share.devices))
    node = Node(name="this machine", cores=len(smallest.cores), devices=smallest.devices)
    for arm in sweep.arms:
        place(arm.recipe, [node])
    return shares


def _accuracy(run: SweepRun) -> float | None:
    found: float | None = msgspec.json.decode((run.directory / SUMMARY).read_bytes())["accuracy_after"]
    return found


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
