"""Start a reward worker and talk to it, on the controller's side.

calls ─► Worker (arl.reward.worker) ─► answers, and the news that its connection has closed
"""

import asyncio
import socket
import sys
from collections.abc import Callable, Mapping

import msgspec

from arl.errors import printable
from arl.launch.frames import FrameError, FrameReader, decode
from arl.launch.process_state import describe_exit, describe_state, state_of
from arl.launch.spawn import kill_session, spawn
from arl.reward.messages import LONGEST_ANSWER, READY, Answer, RewardCall, Settings, fault_in
from arl.reward.strays import MARK, kill_marked, new_mark

# Unreleased calls of a worker. Each answer makes room for one more, so that a burst of finished episodes waits for no
# answers in between. Each call that is left behind halves the room, so that few wait behind answers that hang.
FIRST_ROOM = 16
LEAST_ROOM = 2
MOST_ROOM = 128
LONGEST_FAULT = 300  # characters
END_SECONDS = 10.0  # for a worker to kill its lanes and exit


class WorkerLink(asyncio.Protocol):
    """Hold one worker process, the connection to it, and the calls that it owes an answer.

    Args:
        on_answer: called with each answer to a call.
        on_lost: called once, when the connection has closed.
    """

    def __init__(
        self,
        on_answer: Callable[["WorkerLink", Answer], None],
        on_lost: Callable[["WorkerLink"], None],
    ) -> None:
        self._on_answer = on_answer
        self._on_lost = on_lost
        self._frames = FrameReader(LONGEST_ANSWER)
        self._transport: asyncio.WriteTransport | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._mark = new_mark()  # in the environment of the worker, and of what it starts
        self.is_ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()  # False: it died first
        self.owed: set[int] = set()  # ids of calls without an answer
        self.unreleased: set[int] = set()  # those of them that keep its front lane from the next call
        self._has_single = False  # the last call was sent alone
        self._only_call = 0  # id of the last call that takes the worker for itself until it is answered
        self._room = FIRST_ROOM  # unreleased calls, at most
        self.fault = ""  # what came from it that no worker sends; nothing more is read then
        self.last_heard = 0.0  # clock seconds: its last answer, or the call that was sent when it owed none

    @classmethod
    async def start(
        cls,
        settings: Settings,
        environment: Mapping[str, str],
        output: int,
        on_answer: Callable[["WorkerLink", Answer], None],
        on_lost: Callable[["WorkerLink"], None],
    ) -> "WorkerLink":
        """Start a worker. It is ready when it has imported its functions.

        Args:
            output: file descriptor of its standard output and error.

        Raises:
            OSError: the process cannot be started.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            loop = asyncio.get_running_loop()
            _, link = await loop.create_connection(lambda: cls(on_answer, on_lost), sock=ours)
            try:
                link._process = await spawn(
                    (sys.executable, "-m", "arl.reward.worker", msgspec.json.encode(settings).decode()),
                    {**environment, MARK: link._mark},
                    stdin=theirs.fileno(),
                    output=output,
                )
            except BaseException:
                link._close()
                raise
        return link

    def __str__(self) -> str:
        return f"reward worker (pid {self.pid})"

    def state(self) -> str:
        """Say what the kernel has it do."""
        return describe_state(state_of(self.pid or 0))

    def how_it_ended(self) -> str:
        """Say how it has ended, as in `was killed by SIGTERM`."""
        assert self._process is not None
        assert self._process.returncode is not None
        return describe_exit(self._process.returncode)

    @property
    def pid(self) -> int | None:
        """Return its process id; None: it is not started yet."""
        return None if self._process is None else self._process.pid

    def has_room(self, alone: bool) -> bool:
        """Return whether it takes another call; `alone`: one that shares the worker with no other."""
        if self._only_call in self.owed:
            return False
        if alone or self._has_single:
            return not self.unreleased
        return len(self.unreleased) < self._room

    def send(self, call: RewardCall, framed: bytes, only_call: bool = False) -> None:
        """Send a call, which it then owes an answer. Until it is released, one that is sent alone leaves no room.

        Args:
            framed: the call as it is sent.
            only_call: leaves no room until it is answered, also when it goes on aside.
        """
        assert self._transport is not None
        if not self.owed:
            self.last_heard = asyncio.get_running_loop().time()
        self._has_single = call.is_alone
        if only_call:
            self._only_call = call.id
        self.owed.add(call.id)
        self.unreleased.add(call.id)
        self._transport.write(framed)

    async def end(self, at_once: bool = False) -> None:
        """End the process with everything that it started, and reap it.

        Args:
            at_once: kill it; otherwise it ends by itself first, because it knows what its lanes have started.
        """
        self._close()
        if self._process is None:
            return
        if not at_once:
            try:
                async with asyncio.timeout(END_SECONDS):
                    await self._process.wait()
            except TimeoutError:
                pass
        kill_session(self._process)
        await self._process.wait()
        await kill_marked(self._mark)

    def stop_listening(self) -> None:
        """Forget whom to call with answers, because its calls are someone else's now."""
        self._on_answer = _ignore
        self._on_lost = _ignore

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self.fault:
            return
        self.last_heard = asyncio.get_running_loop().time()
        try:
            for body in self._frames.feed(data):
                self._take(decode(body, Answer))
        except FrameError as error:  # somebody else writes here, so nothing that comes can be believed
            self.fault = printable(str(error))[:LONGEST_FAULT]
            assert self._transport is not None
            self._transport.abort()

    def _take(self, answer: Answer) -> None:
        """Use an answer.

        Raises:
            FrameError: a worker gives no such answer.
        """
        if answer.id == READY and not self.is_ready.done():
            self.is_ready.set_result(True)
            return
        if answer.id not in self.owed:
            raise FrameError(f"an answer to call {answer.id}, which was not made")
        fault = "" if answer.verdict is None else fault_in(answer.verdict)
        if fault:
            raise FrameError(fault)
        is_first = answer.id in self.unreleased
        self.unreleased.discard(answer.id)
        if answer.verdict is None:
            if is_first:
                self._room = max(LEAST_ROOM, self._room // 2)
        else:
            self._room = min(MOST_ROOM, self._room + 1)
            self.owed.discard(answer.id)
        self._on_answer(self, answer)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.is_ready.done():
            self.is_ready.set_result(False)
        self._on_lost(self)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def _ignore(*_: object) -> None:
    pass
