"""Run a sweep from its request to its summary.

request ─► check_arms ─► open_directory ─► ArmRunner ─► summary
                │
                └─► --dry-run: the arms, their states
"""

from pathlib import Path

from rich.console import Console

from arl import clock
from arl.config.leaves import leaves
from arl.errors import RunError
from arl.launch.base import Node
from arl.launch.devices import Share, core_numbers, divide, visible_cores, visible_devices
from arl.launch.placement import place
from arl.sweep.check_arms import CheckedSweep, check_arms
from arl.sweep.request import SweepRequest
from arl.sweep.run_arms import ArmRunner, FailedRun
from arl.sweep.sweep_directory import SweepRun, check_directory, list_runs, open_directory, sweep_path
from arl.sweep.sweep_display import SweepDisplay, print_plan, print_results


class PlannedSweep:
    """Hold a sweep that was checked and can start.

    Raises:
        InputError: an arm cannot run, the machine is too small, or the directory is another sweep's.
    """

    def __init__(self, request: SweepRequest, console: Console) -> None:
        self.console = console
        self.checked = check_arms(request, self.note)
        self.directory = sweep_path(request, self.checked)
        self.runs: list[SweepRun] = list_runs(self.directory, self.checked)
        self.shares = _shares(request, self.checked, len(self.runs))
        check_directory(self.directory, self.checked)

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
    base = dict(leaves(planned.checked.base.model_dump(mode="json")))
    print_plan(planned.runs, base, len(planned.shares), console)


def run_sweep(request: SweepRequest, console: Console) -> Path:
    """Run what is not finished, and return the directory of the sweep.

    Raises:
        InputError: see PlannedSweep; or another process runs this sweep. Nothing was started.
        RunError: runs have failed; all others are finished.
    """
    planned = PlannedSweep(request, console)
    with open_directory(planned.directory, planned.checked):
        failed = _run(planned)
    print_results(planned.runs, console)
    if failed:
        raise RunError(_list_failed(failed, len(planned.runs)))
    planned.note(f"arl report {planned.directory}")
    return planned.directory


def _run(planned: PlannedSweep) -> list[FailedRun]:
    total = len(planned.runs)
    states = [run.state for run in planned.runs]
    finished = states.count("finished")
    planned.note(f"sweep directory {planned.directory}: {finished} of {total} runs are finished")
    display = SweepDisplay(planned.console, total, finished)
    try:
        return clock.run(ArmRunner(planned.runs, planned.shares, display).run)
    except KeyboardInterrupt:
        display.note("the same command goes on with this sweep")
        raise


def _shares(request: SweepRequest, checked: CheckedSweep, num_runs: int) -> list[Share]:
    """Divide the machine. Runs in one process compute with one thread, and need no cores of their own.

    Raises:
        InputError: there are too few devices for an arm.
    """
    if all(arm.recipe.world_traits.one_process for arm in checked.arms):
        jobs = request.jobs or visible_cores()
        return [Share()] * min(jobs, num_runs)
    jobs = min(request.jobs or 1, num_runs)
    shares = divide(jobs, core_numbers(), visible_devices())
    smallest = min(shares, key=lambda share: len(share.devices))
    node = Node(name="this machine", cores=len(smallest.cores), devices=smallest.devices)
    for arm in checked.arms:
        place(arm.recipe, [node])
    return shares


def _list_failed(failed: list[FailedRun], total: int) -> str:
    lines = [f"{len(failed)} of {total} runs failed; the same command tries them again:"]
    lines += [f"    {failure.run}: {failure.why}" for failure in failed]
    return "\n".join(lines)
