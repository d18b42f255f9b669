"""Define status.json: what a run does at this moment, for `arl top` and the dashboard of `arl train`.

controller ─► RunStatus, once a second ─► status.json, replaced as a whole ─► read_status, on any host that sees it

What is not known is None.
"""

import os
import platform
from pathlib import Path

import msgspec
from msgspec import Struct

from arl.errors import DataError, InputError
from arl.files import replace_file
from arl.metrics.run_files import RECIPE

STATUS_FILE = "status.json"
RUNS = "runs"  # state of a process that has not ended
SILENT_SECONDS = 5.0  # without a new status; then it is said that the controller has not written


class ProcessStatus(Struct, frozen=True, kw_only=True):
    """Describe one process of a run."""

    role: str
    node: str
    pid: int  # 0: its node is still starting it
    state: str = RUNS  # or how it has ended
    since: float | None = None  # its start, as time.time(); of another node: when the controller has first seen it
    restarts: int = 0  # of its role
    memory_bytes: int | None = None  # resident, with all that it has started; of another node: as last reported
    version: int | None = None  # loaded weights of an engine
    open_requests: int | None = None
    running: int | None = None  # requests, as the engine has last reported, like the next four
    waiting: int | None = None
    slots: int | None = None
    cache_tokens: int | None = None
    cache_capacity: int | None = None


class WaitStatus(Struct, frozen=True):
    """Describe one wait of the controller."""

    who: str
    what: str
    seconds: float


class GroupsStatus(Struct, frozen=True, kw_only=True):
    """Count the groups in flight."""

    running: int  # their episodes are under way
    finished: int  # scored; they wait for their step
    capacity: int | None  # most that may be in flight at once; None: no rule says it
    problems_per_step: int


class Speed(Struct, frozen=True, kw_only=True):
    """Hold means over the last steps."""

    steps: int  # that the means are over
    step_seconds: float
    generated_per_s: float  # tokens
    trained_per_s: float
    trainer_waits: dict[str, float]  # cause -> share of the time: groups, bound, device
    engine_idle: float  # share of the time
    gate: float  # share in which nothing was open, because no group might start


class RunStatus(Struct, frozen=True, kw_only=True):
    """Describe a run at one moment."""

    host: str  # of the controller
    pid: int
    time: float  # when this was written, as time.time() on that host
    clock: float  # the same moment on the run's clock, as in trace.json
    stage: str  # starting, evaluation before training, training …
    end: str = ""  # how the run has ended; empty: it goes on
    version: int = 0
    steps: int  # versions of the whole run, at most
    tokens: int = 0  # loss tokens that are trained
    most_tokens: int | None = None  # train.tokens, with which the run ends; None: with `steps`
    loaded_version: int = 0
    staleness: int | None = None  # the bound; None: there is none
    has_exact_lag: bool = False  # rollout.lag takes the place of the bound
    groups: GroupsStatus | None = None
    waits: tuple[WaitStatus, ...] = ()  # longest first
    last_step: dict[str, float] = {}  # numbers of its record
    speed: Speed | None = None
    evaluations: dict[str, tuple[int, float]] = {}  # suite -> newest version, accuracy
    seconds_left: float | None = None
    processes: tuple[ProcessStatus, ...] = ()

    @property
    def is_of_this_host(self) -> bool:
        """Return whether it was written by the clock of the host that reads it."""
        return self.host == platform.node()


def write_status(run: Path, status: RunStatus) -> None:
    """Replace the status of a run. A reader sees the old one or the new one, and never a part."""
    replace_file(run / STATUS_FILE, msgspec.json.encode(status))


def read_status(run: Path) -> RunStatus:
    """Read the status of a run.

    Raises:
        InputError: this is no run, or one that writes no status.
        DataError: the file is damaged.
    """
    require_run(run)
    file = run / STATUS_FILE
    try:
        status: RunStatus = msgspec.json.decode(file.read_bytes(), type=RunStatus)
        return status
    except FileNotFoundError:
        raise InputError(
            f"{run}: has no {STATUS_FILE}; a run has one from its start-up on, unless its time is virtual"
        ) from None
    except msgspec.DecodeError as error:
        raise DataError(f"{file}: is damaged, or of another version of arl ({error})") from error


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
