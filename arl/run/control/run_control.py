"""Ask the controller of a run to describe it or to change its engines, from any machine that sees its directory.

    RUN/control/requests/ID.json     a command ─► the controller, which takes it away
    RUN/control/answers/ID.json      the controller ─► the command, which takes it away

The controller looks once a second, beside all else that it does. Nothing listens for it, and the folder is there as
long as the controller takes requests. Only the owner of the run can write there.
"""

import asyncio
import contextlib
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

import arl
from arl.clock import in_thread, now
from arl.errors import ArlError, InputError, RunError, short_message
from arl.files import replace_file
from arl.metrics.run_status import read_status
from arl.run.control.control_messages import (
    ControlAnswer,
    DescribeRun,
    EngineStatus,
    JoinEngine,
    LiveRun,
    RemoveEngine,
    Request,
)

FOLDER = "control"
REQUESTS = "requests"
ANSWERS = "answers"
POLL_SECONDS = 1.0
LOOK_SECONDS = 0.2
TAKEN_SECONDS = 30.0  # in which a controller that lives has taken a request


class RunControl:
    """Ask the controller of the run in directory `run`."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self._folder = run / FOLDER

    @property
    def is_open(self) -> bool:
        """Return whether the run takes requests, as far as its directory says: a controller may have been killed."""
        return os.path.isdir(self._folder)

    async def describe(self) -> LiveRun:
        """Return what the controller says of the run at this moment.

        Raises:
            InputError: the run does not run, is another user's, or is of another version.
            RunError: its controller does not answer.
        """
        if not self.is_open:
            status = read_status(self.run)
            if status.end:
                raise InputError(f"{self.run}: has ended: {status.end}")
            raise InputError(f"{self.run}: takes no commands now ({status.stage}); it does while it trains")
        run = (await self._answer(DescribeRun(), TAKEN_SECONDS)).run
        assert run is not None
        if run.arl != arl.__version__:
            raise InputError(f"{self.run}: runs under arl {run.arl}, and this is {arl.__version__}; install the same")
        return run

    async def ask(self, request: JoinEngine | RemoveEngine, seconds: float) -> str:
        """Ask for a change that may take `seconds`, and return what was done.

        Raises:
            InputError: the controller refuses it.
            RunError: it failed, or there is no answer in time.
        """
        return (await self._answer(request, seconds)).done

    async def _answer(self, request: Request, seconds: float) -> ControlAnswer:
        name = f"{secrets.token_hex(8)}.json"
        asked = self._folder / REQUESTS / name
        answered = self._folder / ANSWERS / name
        try:
            replace_file(asked, msgspec.json.encode(request))
            silent = f"its controller has taken no request for {TAKEN_SECONDS:g} s: it was killed, or hangs"
            await self._until(lambda: not os.path.exists(asked), TAKEN_SECONDS, silent)
            late = f"not done after {seconds:g} s; `arl engines list` shows what becomes of it"
            await self._until(lambda: os.path.exists(answered), seconds, late)
            answer: ControlAnswer = msgspec.json.decode(answered.read_bytes(), type=ControlAnswer)
        except FileNotFoundError as error:  # the controller has removed the folder
            raise RunError(f"{self.run}: the run has ended meanwhile") from error
        except PermissionError as error:
            raise InputError(f"{self._folder}: {error.strerror}; ask as the user who has started the run") from error
        except msgspec.DecodeError as error:
            raise InputError(f"{self.run}: {error}; is it of another version of arl?") from error
        finally:
            for file in (asked, answered):
                with contextlib.suppress(OSError):
                    file.unlink()
        if answer.error:
            raise (InputError if answer.is_input else RunError)(answer.error)
        return answer

    async def _until(self, is_so: Callable[[], bool], seconds: float, otherwise: str) -> None:
        """Wait until a file is there, or is gone. Nothing announces that across hosts, so it is looked for."""
        end = now() + seconds
        while not is_so():
            if not self.is_open:
                raise FileNotFoundError(self._folder)
            if now() > end:
                raise RunError(f"{self.run}: {otherwise}")
            await asyncio.sleep(LOOK_SECONDS)


class ChangeableEngines(Protocol):
    """Change the engines of a run. In a run it is arl.run.engine_pool.EnginePool."""

    def statuses(self) -> Sequence[EngineStatus]: ...

    async def join(self, guest: JoinEngine) -> str: ...

    async def remove(self, name: str) -> int: ...


class ControlServer:
    """Answer requests until it is cancelled.

    Args:
        folder: RUN/control.
        engines: which the requests are about.
        run: what is said of it; `engines` are filled in.
        note: is called with one line when the folder cannot be used, and when it can again.
    """

    def __init__(self, folder: Path, engines: ChangeableEngines, run: LiveRun, note: Callable[[str], None]) -> None:
        self._folder = folder
        self._engines = engines
        self._run = run
        self._note = note
        self._failure = ""  # of the last look

    async def serve(self) -> None:
        """Answer requests.

        Consumes files of the folder; waits a second between two looks; unblocked by time alone.
        """
        async with asyncio.TaskGroup() as answers:
            while True:
                for name, data in await self._take():
                    answers.create_task(self._answer(name, data), name=f"control request {name}")
                await asyncio.sleep(POLL_SECONDS)

    async def _take(self) -> list[tuple[str, bytes]]:
        """Take the requests that are there. A disk that fails costs the run its commands, and nothing else."""
        try:
            taken = await in_thread(_take_all, self._folder / REQUESTS)
        except OSError as error:
            taken = []
            failure = f"{self._folder}: {error.strerror}; `arl engines` cannot reach this run"
        else:
            failure = ""
        if failure != self._failure:
            self._note(failure or f"{self._folder} can be used again")
        self._failure = failure
        return taken

    async def _answer(self, name: str, data: bytes) -> None:
        try:
            answer = await self._do(msgspec.json.decode(data, type=Request))
        except ArlError as error:
            answer = ControlAnswer(error=short_message(str(error)), is_input=isinstance(error, InputError))
        except msgspec.DecodeError as error:
            answer = ControlAnswer(error=f"request {name} cannot be read: {error}", is_input=True)
        with contextlib.suppress(OSError):  # the next look at the folder reports it
            await in_thread(replace_file, self._folder / ANSWERS / name, msgspec.json.encode(answer))

    async def _do(self, request: Request) -> ControlAnswer:
        """Do what a request asks for, and say what was done.

        Raises:
            InputError: it must not be done.
            RunError: it failed.
        """
        match request:
            case DescribeRun():
                return ControlAnswer(run=msgspec.structs.replace(self._run, engines=list(self._engines.statuses())))
            case JoinEngine():
                return ControlAnswer(done=await self._engines.join(request))
            case RemoveEngine(name):
                moved = await self._engines.remove(name)
                return ControlAnswer(done=f"{name}: {moved} open requests go on elsewhere")


def _take_all(requests: Path) -> list[tuple[str, bytes]]:
    """Read the requests, and remove them."""
    taken = []
    for file in sorted(path for path in requests.iterdir() if path.suffix == ".json"):
        with contextlib.suppress(FileNotFoundError):  # its command has taken it back
            data = file.read_bytes()
            file.unlink()
            taken.append((file.name, data))
    return taken


@contextlib.asynccontextmanager
async def serve_control(
    run: Path, engines: ChangeableEngines, description: LiveRun, note: Callable[[str], None]
) -> AsyncIterator[None]:
    """Answer requests while the context lasts; remove the folder at its end, which says that the run takes no more."""
    folder = run / FOLDER
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
    for made in (folder, folder / REQUESTS, folder / ANSWERS):
        made.mkdir(mode=0o700)
    try:
        async with asyncio.TaskGroup() as tasks:
            server = ControlServer(folder, engines, description, note)
            serving = tasks.create_task(server.serve(), name="control server")
            yield
            serving.cancel()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
