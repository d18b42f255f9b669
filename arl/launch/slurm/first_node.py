"""Run `arl` on the first node of an allocation, for a shell of `salloc` that is on no node of it.

    terminal ─► this process ── signals, and an empty line every few seconds ──► stdin of srun ─► runner ─► `arl` there
                 terminal ◄── stdout, stderr of srun (--pty if they are a terminal) ◄──────────────────────────┘
                 its exit code ◄── a file that the runner writes (arl.launch.slurm.step_runner)

srun alone would not do: SIGTERM to it kills the command without a checkpoint, and its exit code is 0 if the node fails.
"""

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from arl.errors import InputError, RunError
from arl.launch.base import Command
from arl.launch.child import DEATH_SIGNAL, PARENT
from arl.launch.private_directory import nearest_directory, private_directory
from arl.launch.slurm import step_runner
from arl.launch.slurm.allocation import Allocation
from arl.launch.slurm.step_file import SILENCE, write_step_file
from arl.launch.slurm.step_runner import MARK
from arl.launch.spawn import RUNNER

BEAT_SECONDS = SILENCE / 12
START_SECONDS = 120.0  # for Slurm to start the step
END_SECONDS = 30.0  # for srun to end its step
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PREFIX = "first-node-"


def run_on_first_node(allocation: Allocation, arguments: Sequence[str], run_directory: Path) -> int:
    """Run `arl` with these arguments on the first node, as if it ran here, and return its exit code.

    Args:
        run_directory: the nearest directory above it that exists holds, until the end, what both sides read.

    Raises:
        InputError: nothing could be started there.
        RunError: the node, or the step, was lost.
    """
    place = nearest_directory(run_directory.parent)
    with contextlib.ExitStack() as stack:
        try:
            directory = stack.enter_context(private_directory(place, PREFIX))
        except OSError as error:
            raise InputError(f"output.directory: {place} cannot be written to ({error.strerror})") from error
        return _run_step(allocation, allocation.names[0], arguments, directory)


def _run_step(allocation: Allocation, node: str, arguments: Sequence[str], directory: Path) -> int:
    reports = directory / "reports"
    command = Command((sys.executable, "-m", "arl.cli", *arguments))
    file = write_step_file(directory, "controller", command, {}, address=None, reports=reports)
    # Without --unbuffered, which makes the output of the command a terminal.
    terminal = ["--pty"] if sys.stdout.isatty() else []
    runner = (sys.executable, "-I", "-S", step_runner.__file__, str(file))
    code = _run_srun([*allocation.step([node]), "--job-name=controller", *terminal, *runner], reports)
    said = reports.read_text(errors="replace") if os.path.exists(reports) else ""
    ended = re.search(rf"^{MARK}ended (-?[0-9]{{1,9}})$", said, re.MULTILINE)
    if ended is not None:
        number = int(ended[1])
        return number if number >= 0 else 128 - number  # as a shell says that a signal has killed it
    if not said:
        raise InputError(
            f"launcher slurm: nothing starts on {node}, the first node of job {allocation.job} (exit code {code} of "
            f"srun, which says why); try `{' '.join(allocation.step([node]))} hostname`"
        )
    raise RunError(
        f"the controller on {node} is lost, with its node or by the end of job {allocation.job} (see `squeue "
        f"--jobs={allocation.job}` and the lines of srun); go on with `arl train RUN/recipe.yaml --resume`"
    )


def _run_srun(srun: Sequence[str], reports: Path) -> int:
    """Run srun to its end, and return its exit code. Signals go to the command, or to srun if it has not begun."""
    reading_end, writing_end = os.pipe()
    os.set_blocking(writing_end, False)
    environment = {PARENT: str(os.getpid()), DEATH_SIGNAL: str(int(signal.SIGTERM))}
    process = subprocess.Popen(
        [*RUNNER, *srun],
        stdin=reading_end,
        env={**os.environ, **environment},
        start_new_session=True,  # Ctrl-C is this process's to pass on
    )

    def handle(number: int) -> None:
        if os.path.exists(reports):
            _say(writing_end, str(number))
        else:
            process.terminate()

    try:
        with _signals_handled(handle, process):
            return _wait_for_end(process, writing_end, reports)
    finally:
        _end(process)
        os.close(reading_end)
        os.close(writing_end)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End srun, which gives its step up, and the runner if it does not; neither has an effect on one that has ended."""
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_for_end(srun: "subprocess.Popen[bytes]", pipe: int, reports: Path) -> int:
    """Wait for the end of srun, which is the deadline of a run, and return its exit code.

    Every few seconds the runner is told that this process lives. A step that does not begin in time is given up.
    """
    began = time.monotonic()
    with open(os.pidfd_open(srun.pid), "rb") as end:
        while not select.select([end], [], [], BEAT_SECONDS)[0]:
            _say(pipe, "")
            if time.monotonic() - began > START_SECONDS and not os.path.exists(reports):
                srun.terminate()
    return srun.wait()


@contextlib.contextmanager
def _signals_handled(handle: Callable[[int], None], srun: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Call `handle` with the signals that end a run; srun is told that the terminal has another size."""
    handlers = {number: signal.signal(number, lambda number, _: handle(number)) for number in PASSED_ON}
    handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, lambda number, _: srun.send_signal(number))
    try:
        yield
    finally:
        for number, before in handlers.items():
            signal.signal(number, before)


def _say(pipe: int, words: str) -> None:
    """Write a line to the runner, if srun still takes any."""
    with contextlib.suppress(BrokenPipeError, BlockingIOError):  # it has ended, or its node is cut off
        os.write(pipe, f"{words}\n".encode())
