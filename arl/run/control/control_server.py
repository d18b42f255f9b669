"""Answer the commands that write into RUN/control, once a second, beside all else that the controller does.

    every second ─► a thread: write state.json, take requests ─► a task each: the engine pool does it ─► answers/ID.json

What lies in the folder is not trusted to be well formed: what cannot be read is answered with an error, or left alone.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

import arl
from arl.clock import in_thread
from arl.errors import ArlError, InputError, short_message
from arl.run.control.control_folder import ANSWER_SECONDS, ControlFolder, write_private
from arl.run.control.control_messages import (
    ControlAnswer,
    EngineStatus,
    JoinEngine,
    LiveRun,
    RemoveEngine,
    Request,
)

POLL_SECONDS = 1.0


class ChangeableEngines(Protocol):
    """Change the engines of a run. In a run it is arl.run.engine_pool.EnginePool."""

    def statuses(self) -> Sequence[EngineStatus]: ...

    async def join(self, guest: JoinEngine) -> str: ...

    async def remove(self, name: str) -> int: ...


class ControlServer:
    """Answer requests until it is cancelled.

    Args:
        folder: of the run.
        engines: which the requests are about.
        state: of the run; `beat` and `engines` are filled in for each write.
        note: is called with one line when the folder cannot be used, and when it can again.
    """

    def __init__(
        self, folder: ControlFolder, engines: ChangeableEngines, state: LiveRun, note: Callable[[str], None]
    ) -> None:
        self._folder = folder
        self._engines = engines
        self._state = state
        self._note = note
        self._failure = ""  # of the last poll

    async def run(self) -> None:
        """Answer requests.

        Consumes files of the folder; waits a second between two looks; unblocked by time alone.
        """
        async with asyncio.TaskGroup() as answers:
            while True:
                for name, content in await self._poll():
                    answers.create_task(self._answer(name, content), name=f"control request {name}")
                await asyncio.sleep(POLL_SECONDS)

    async def _poll(self) -> list[tuple[str, bytes | str]]:
        """Look into the folder. A disk that fails costs the run its commands, and nothing else."""
        self._state = msgspec.structs.replace(
            self._state, beat=self._state.beat + 1, engines=list(self._engines.statuses())
        )
        data = msgspec.json.encode(self._state)
        try:
            polled = await in_thread(self._folder.poll, data)
        except OSError as error:
            self._report(f"{self._folder.path}: {error.strerror}; `arl engines` cannot reach this run")
            return []
        self._report(polled.failure and f"{polled.failure}; it is taken away as soon as that can be done")
        return polled.requests

    def _report(self, failure: str) -> None:
        if failure != self._failure:
            self._note(failure or f"{self._folder.path} can be used again")
        self._failure = failure

    async def _answer(self, name: str, content: bytes | str) -> None:
        try:
            answer = ControlAnswer(done=await self._do(name, content))
        except ArlError as error:
            answer = ControlAnswer(error=short_message(str(error)), is_input=isinstance(error, InputError))
        await self._write(name, msgspec.json.encode(answer))

    async def _write(self, name: str, answer: bytes) -> None:
        """Write an answer, again and again while the disk fails and somebody may wait for it."""
        for _ in range(round(ANSWER_SECONDS / POLL_SECONDS)):
            with contextlib.suppress(OSError):  # the next look at the folder reports it
                await in_thread(self._folder.answer, name, answer)
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _do(self, name: str, content: bytes | str) -> str:
        """Do what a request asks for, and say what was done.

        Raises:
            InputError: it cannot be read, or must not be done.
            RunError: it failed.
        """
        if isinstance(content, str):
            raise InputError(f"request {name} cannot be read: {content}")
        try:
            request: Request = msgspec.json.decode(content, type=Request)
        except msgspec.DecodeError as error:
            raise InputError(f"request {name} cannot be read: {error}") from error
        match request:
            case JoinEngine():
                if request.arl != arl.__version__:
                    raise InputError(f"arl {request.arl}: the run has arl {arl.__version__}; install the same version")
                refuse_other_model(self._state, request.name, request.model)
                _refuse_malformed(request.url)
                return await self._engines.join(request)
            case RemoveEngine():
                moved = await self._engines.remove(request.name)
                return f"{request.name}: {moved} open requests go on elsewhere"
        raise AssertionError(request)


def refuse_other_model(state: LiveRun, who: str, model: str) -> None:
    """Raise InputError if the sha256 `model` of weights, config and tokenizer is not that of the run's engines."""
    if model != state.model:
        raise InputError(
            f"{who}: has other weights, or another config or tokenizer, than the engines of the run "
            f"(sha256 {model[:12]}; theirs is {state.model[:12]}); give it the files of {state.versions.served}"
        )


def _refuse_malformed(url: str) -> None:
    try:
        urlsplit(url).port  # noqa: B018  it is read for its error
    except ValueError as error:
        raise InputError(f"{url}: is no address of a server: {error}") from error


@contextlib.asynccontextmanager
async def serve_control(
    folder: ControlFolder, engines: ChangeableEngines, state: LiveRun, note: Callable[[str], None]
) -> AsyncIterator[None]:
    """Answer requests while the context lasts; remove the folder at its end."""
    folder.make()
    write_private(folder.state, msgspec.json.encode(state))
    try:
        async with asyncio.TaskGroup() as tasks:
            server = tasks.create_task(ControlServer(folder, engines, state, note).run(), name="control server")
            yield
            server.cancel()
    finally:
        folder.remove()
