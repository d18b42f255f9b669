"""Define what the controller of a run can be asked, and how it answers."""

from typing import Literal

from msgspec import Struct

from arl.launch.base import Resources
from arl.types import StartingVersions

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

    arl: str  # version
    host: str  # identifies the controller's machine and network, see arl.launch.network.host_identity
    is_local: bool  # its processes listen on loopback, so only processes of this host reach them
    weights: str | None  # directory through which they travel, which every engine must see; None: not through files
    versions: StartingVersions  # an engine that joins begins with the oldest
    model: str  # sha256 of its weights, config and tokenizer, see arl.run.evaluation.results
    like: Resources  # those of the run's first engine
    engines: list[EngineStatus]


class DescribeRun(Struct, frozen=True, tag=True):
    """Describe the run."""


class JoinEngine(Struct, frozen=True, tag=True, kw_only=True):
    """Take an engine into the run that somebody else has started, and that is ready."""

    name: str
    url: str
    node: str  # where it runs
    pid: int


class RemoveEngine(Struct, frozen=True, tag=True):
    """Take an engine out of the run. Its open requests go on elsewhere."""

    name: str


Request = DescribeRun | JoinEngine | RemoveEngine


class ControlAnswer(Struct, frozen=True):
    """Say what came of a request."""

    done: str = ""  # what was done, in a few words
    run: LiveRun | None = None  # as it was asked for
    error: str = ""  # why nothing was done; empty: it was
    is_input: bool = False  # the error is the asker's
