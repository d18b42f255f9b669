"""Ask the controller of a run to describe it or to change its engines, from any machine that sees its directory.

    RUN/control/ID.request     a command ─► the controller, which takes it away
    RUN/control/ID.answer      the controller ─► the command, which takes it away

The controller looks once a second, beside all else that it does. Nothing listens for it, and the folder is there as
long as the controller takes requests. Only the owner of the run can write there.
"""

import asyncio
import contextlib
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
from msgspec import Struct

import arl
from arl.clock import in_thread, now
from arl.errors import ArlError, InputError, RunError, short_message
from arl.files import replace_file
from arl.launch.base import Resources
from arl.metrics.run_status import ProcessStatus, read_status
from arl.types import StartingVersions

FOLDER = "control"
REQUEST = ".request"
ANSWER = ".answer"
POLL_SECONDS = 1.0  # between two looks of the controller
LOOK_SECONDS = 0.2  # between two looks of a command
DESCRIBE_SECONDS = 30.0  # in which a controller that lives has described its run


# ---- messages


class LiveRun(Struct, frozen=True, kw_only=True):
    """Describe a run as those see it who want to change its engines."""

    arl: str  # version
    only_host: str | None  # that reaches its processes, as they listen on loopback: see host_identity; None: others do
    weights: str | None  # directory through which they travel, which every engine must see; None: not through files
    versions: StartingVersions  # an engine that joins begins with the oldest
    model: str  # sha256 of its weights, config and tokenizer, see arl.run.evaluation.results
    like: Resources  # those of the run's first engine
    engines: list[ProcessStatus] = []


class DescribeRun(Struct, frozen=True, tag=True):
    """Describe the run."""


class JoinEngine(Struct, frozen=True, tag=True, kw_only=True):
    """Take an engine into the run that another process has started, and that is ready."""

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


# ---- the side of a command


class RunControl:
    """Ask the controller of the run in directory `run`."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self._folder = run / FOLDER

    @property
    def is_open(self) -> bool:
        """Return whether the run takes requests, as far as its directory says: a controller may have been killed."""
        return os.path.isdir(self._folder)  # Path.is_dir() raises where another user's directory cannot be read

    async def describe(self) -> LiveRun:
        """Return what the controller says of the run at this moment.

        Raises:
            InputError: the run does not run, is another user's, or is of another version.
            RunError: its controller does not answer.
        """
        if not self.is_open:
            status = read_status(self.run)
            now_not = f"takes no commands now ({status.stage}); it does while it trains"
            raise InputError(f"{self.run}: {f'has ended: {status.end}' if status.end else now_not}")
        run = (await self.ask(DescribeRun(), DESCRIBE_SECONDS)).run
        assert run is not None
        if run.arl != arl.__version__:
            raise InputError(f"{self.run}: runs under arl {run.arl}, and this is {arl.__version__}; install the same")
        return run

    async def ask(self, request: Request, seconds: float) -> ControlAnswer:
        """Ask for something that may take `seconds`.

        Raises:
            InputError: the controller refuses it.
            RunError: it failed, or there is no answer in time.
        """
        name = secrets.token_hex(8)
        asked = self._folder / f"{name}{REQUEST}"
        answered = self._folder / f"{name}{ANSWER}"
        end = now() + seconds
        try:
            replace_file(asked, msgspec.json.encode(request))
            while not answered.exists():  # nothing announces that across hosts
                if not self.is_open:
                    raise RunError(f"{self.run}: the run has ended meanwhile")
                if now() > end:
                    raise RunError(f"{self.run}: no answer in {seconds:g} s: its controller was killed, or hangs")
                await asyncio.sleep(LOOK_SECONDS)
            answer: ControlAnswer = msgspec.json.decode(answered.read_bytes(), type=ControlAnswer)
        except PermissionError as error:
            raise InputError(f"{self._folder}: {error.strerror}; ask as the user who has started the run") from error
        finally:
            with contextlib.suppress(OSError):
                asked.unlink(missing_ok=True)
                answered.unlink(missing_ok=True)
        if answer.error:
            raise (InputError if answer.is_input else RunError)(answer.error)
        return answer


# ---- the side of the controller


@contextlib.asynccontextmanager
async def serve_control(run: Path, do: Callable[[Request], Awaitable[ControlAnswer]]) -> AsyncIterator[None]:
    """Answer requests while the context lasts; remove the folder at its end, which says that the run takes no more.

    Args:
        do: does what a request asks for; raises InputError if it must not be done, RunError if that fails.
    """
    folder = run / FOLDER
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
    folder.mkdir(mode=0o700)
    try:
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(_serve(folder, do), name="control server")
            yield
            serving.cancel()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _serve(folder: Path, do: Callable[[Request], Awaitable[ControlAnswer]]) -> None:
    """Answer requests until this is canceled. A disk that fails costs the run its commands, and nothing else.

    Consumes files of the folder; waits a second between two looks; unblocked by time alone.
    """
    async with asyncio.TaskGroup() as answers:
        while True:
            with contextlib.suppress(OSError):
                for request, data in await in_thread(_take_all, folder):
                    answers.create_task(_reply(request, data, do), name=f"control request {request.name}")
            await asyncio.sleep(POLL_SECONDS)


def _take_all(folder: Path) -> list[tuple[Path, bytes]]:
    """Read the requests, and remove them."""
    taken = []
    for request in sorted(folder.glob(f"*{REQUEST}")):
        with contextlib.suppress(FileNotFoundError):  # its command has taken it back
            taken.append((request, request.read_bytes()))
            request.unlink()
    return taken


async def _reply(request: Path, data: bytes, do: Callable[[Request], Awaitable[ControlAnswer]]) -> None:
    try:
        answer = await do(msgspec.json.decode(data, type=Request))
    except (ArlError, msgspec.DecodeError) as error:  # another version of arl may ask in other words
        answer = ControlAnswer(error=short_message(str(error)), is_input=not isinstance(error, RunError))
    with contextlib.suppress(OSError):
        await in_thread(replace_file, request.with_suffix(ANSWER), msgspec.json.encode(answer))
