"""Define status.json: what a run does at this moment, for `arl top` and the dashboard of `arl train`.

controller ─► RunStatus, once a second ─► status.json, replaced as a whole ─► read_status, on any host that sees it

What is not known is None.
"""

import contextlib
import errno
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, structs

from arl.errors import DataError, DiskError, InputError
from arl.launch.disk import writing
from arl.launch.durable import replace_file
from arl.metrics.run_files import RECIPE

STATUS_FILE = "status.json"
RESUMING = "resuming: recipe and checkpoint are checked"  # stage in which nothing is written until they are
RUNS = "runs"  # state of a process that has not ended
STALE_READS = 3  # in a row before one is an error; the file is replaced once a second
SILENT_SECONDS = 5.0  # without a new status; then it is said that the controller has not written

# A status may be of another host, or damaged: what is drawn has a size that can be drawn.
Whole = Annotated[int, Meta(ge=-(10**15), le=10**15)]
Number = Annotated[float, Meta(ge=-1e15, le=1e15)]
Pid = Annotated[int, Meta(ge=0, le=2**31)]


class ProcessStatus(Struct, frozen=True, kw_only=True):
    """Describe one process of a run."""

    role: str
    node: str
    pid: Pid  # 0: its node is still starting it
    state: str = RUNS  # or how it has ended
    since: Number | None = None  # its start, as time.time(); of another node: when the controller has first seen it
    restarts: Whole = 0  # of its role
    memory_bytes: Whole | None = None  # resident, with all that it has started; of another node: not known
    version: Whole | None = None  # loaded weights of an engine
    open_requests: Whole | None = None
    running: Whole | None = None  # requests, as the engine has last reported, like the next four
    waiting: Whole | None = None
    slots: Whole | None = None
    cache_tokens: Whole | None = None
    cache_capacity: Whole | None = None


class WaitStatus(Struct, frozen=True):
    """Describe one wait of the controller."""

    who: str
    what: str
    seconds: Number


class GroupsStatus(Struct, frozen=True, kw_only=True):
    """Count the groups in flight."""

    running: Whole  # their episodes are under way
    finished: Whole  # scored; they wait for their step
    capacity: Whole | None  # most that may be in flight at once; None: no rule says it
    problems_per_step: Whole


class Speed(Struct, frozen=True, kw_only=True):
    """Hold means over the last steps."""

    steps: Whole  # that the means are over
    step_seconds: Number
    generated_per_s: Number  # tokens
    trained_per_s: Number
    trainer_waits: dict[str, Number]  # cause -> share of the time: groups, bound, device
    engine_idle: Number  # share of the time
    gate: Number  # share in which nothing was open, because no group might start


class RunStatus(Struct, frozen=True, kw_only=True):
    """Describe a run at one moment."""

    host: str  # of the controller
    pid: Pid
    time: Number  # when this was written, as time.time() on that host
    clock: Number  # the same moment on the run's clock, as in trace.json
    stage: str  # starting, evaluation before training, training …
    end: str = ""  # how the run has ended; empty: it goes on
    version: Whole = 0
    steps: Whole  # versions of the whole run, at most
    tokens: Whole = 0  # loss tokens that are trained
    most_tokens: Whole | None = None  # train.tokens, with which the run ends; None: with `steps`
    loaded_version: Whole = 0
    staleness: Whole | None = None  # the bound; None: there is none
    has_exact_lag: bool = False  # rollout.lag takes the place of the bound
    groups: GroupsStatus | None = None
    waits: tuple[WaitStatus, ...] = ()  # longest first
    last_step: dict[str, Number] = {}  # numbers of its record
    speed: Speed | None = None
    evaluations: dict[str, tuple[Whole, Number]] = {}  # suite -> newest version, accuracy
    seconds_left: Number | None = None
    controller_busy: Number | None = None  # share of a core that its event loop takes, over about a second
    processes: tuple[ProcessStatus, ...] = ()

    @property
    def is_of_this_host(self) -> bool:
        """Return whether it was written by the clock of the host that reads it."""
        return self.host == platform.node()


def write_status(run: Path, status: RunStatus) -> None:
    """Replace the status of a run. A reader sees the old one or the new one, and never a part."""
    replace_file(run / STATUS_FILE, msgspec.json.encode(status))


@contextlib.contextmanager
def shown_as_resuming(run: Path) -> Iterator[None]:
    """Show a run that has ended as one that starts again; if the block fails, because it cannot, as it was.

    If that cannot be written either, the failure of the block is raised with a note, because it is the cause.

    Raises:
        DiskError: it cannot be shown as one that starts.
    """
    try:
        ended = read_status(run)
    except (InputError, DataError):  # it has none that could mislead
        yield
        return
    here = platform.node()
    starting = structs.replace(
        ended,
        host=here,
        pid=os.getpid(),
        time=time.time(),
        stage=RESUMING,
        end="",
        waits=(),
        seconds_left=None,
        processes=(ProcessStatus(role="controller", node=here, pid=os.getpid()),),
    )
    with writing(run / STATUS_FILE):
        write_status(run, starting)
    try:
        yield
    except BaseException as cause:
        try:
            with writing(run / STATUS_FILE):
                write_status(run, ended)
        except (DiskError, OSError) as error:
            cause.add_note(f"The status of the run could not be written back: {error}")
        raise


def read_status(run: Path) -> RunStatus:
    """Read the status of a run.

    Raises:
        InputError: this is no run, or one that writes no status.
        DataError: the file is damaged.
    """
    require_run(run)
    file = run / STATUS_FILE
    try:
        encoded = _read_replaced(file)
    except FileNotFoundError:
        raise InputError(
            f"{run}: has no {STATUS_FILE}; a run has one from its start-up on, unless its time is virtual"
        ) from None
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from error
    try:
        status: RunStatus = msgspec.json.decode(encoded, type=RunStatus)
        return status
    except msgspec.DecodeError as error:
        raise DataError(f"{file}: is damaged, or of another version of arl ({error})") from error


def _read_replaced(file: Path) -> bytes:
    """Read a file that another host may replace meanwhile; on NFS the one that was opened is then gone: ESTALE."""
    for _ in range(STALE_READS):
        try:
            return file.read_bytes()
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
    return file.read_bytes()


def require_run(run: Path) -> None:
    """Check that `run` is the directory of a run.

    Raises:
        InputError: it is not, or it cannot be looked at; names runs beside or below it.
    """
    if not os.path.isdir(run):
        raise InputError(f"{run}: is no directory; give that of a run of yours, like runs/quickstart")
    if os.path.isfile(run / RECIPE):
        return
    below = [recipe.parent for recipe in sorted(run.glob(f"*/{RECIPE}"))]
    hint = f"; there are {', '.join(str(path) for path in below[:4])}" if below else ""
    raise InputError(f"{run}: is no run, because it has no {RECIPE}{hint}")
