"""Define what a running controller says of itself in RUN/control, what it can be asked, and how it answers."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from arl.launch.base import Resources
from arl.types import StartingVersions

EngineName = Annotated[str, Meta(pattern=r"^engine-[A-Za-z0-9._-]{1,80}$")]
Url = Annotated[str, Meta(pattern=r"^https?://[A-Za-z0-9.:\[\]_-]{1,120}$")]
NodeName = Annotated[str, Meta(min_length=1, max_length=120)]
LARGEST_PID = 1 << 22  # of Linux
State = Literal["starting", "serving", "joined", "restarting"]


class EngineStatus(Struct, frozen=True):
    """Describe one engine of a run."""

    name: str
    node: str
    pid: int | None  # on its node; None: it is being started
    state: State
    version: int | None = None  # that it serves; None: it does not serve
    open: int = 0  # requests
    seconds: float = 0.0  # since it began to serve


class LiveRun(Struct, frozen=True, kw_only=True):
    """Describe a run as those see it who want to change its engines."""

    beat: int  # grows with each write: a controller that is gone or hangs leaves it as it is
    arl: str  # version
    host: str  # identifies the controller's machine and network, see arl.launch.address.host_identity
    is_local: bool  # its processes listen on loopback, so only processes of this host reach them
    weights: str | None  # directory through which they travel, which every engine must see; None: not through files
    versions: StartingVersions  # an engine that joins begins with the oldest
    model: str  # sha256 of its weights, config and tokenizer, see arl.run.evaluation.model_identity
    like: Resources  # those of the run's first engine
    engines: list[EngineStatus]


class JoinEngine(Struct, frozen=True, tag=True, kw_only=True):
    """Take an engine into the run that somebody else has started, and that is ready."""

    name: EngineName
    url: Url
    node: NodeName  # where it runs
    pid: Annotated[int, Meta(gt=0, le=LARGEST_PID)]
    arl: Annotated[str, Meta(max_length=120)]  # version; must be the controller's
    model: Annotated[str, Meta(max_length=120)]  # sha256 of what it has loaded; must be that of the run's engines


class RemoveEngine(Struct, frozen=True, tag=True):
    """Take an engine out of the run. Its open requests go on elsewhere."""

    name: Annotated[str, Meta(max_length=120)]


Request = JoinEngine | RemoveEngine


class ControlAnswer(Struct, frozen=True):
    """Say what came of a request."""

    done: str = ""  # what was done, in a few words
    error: str = ""  # why nothing was done; empty: it was
    is_input: bool = False  # the error is the asker's
