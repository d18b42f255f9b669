"""The controller's end of the trainer: a Trainer over the channel. Torch-free.

    Batch ─► pack_batch ─► one Step per rank ─► Stepped from every rank ─► StepResult
                                          rank 0's publisher: Published ─► weights(version)

One task listens and gives every message to whoever waits for it, another watches connections. The first failure,
be it a rank's traceback, a broken publisher or a dead rank, ends every wait, present and future.
"""

import asyncio
import contextlib
import hmac
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import zmq
import zmq.asyncio
from msgspec import Struct
from zmq.utils.monitor import recv_monitor_message

from arl.clock import deadline
from arl.config.recipe import AdvantageSection, Deadlines
from arl.data.model_limits import model_flops
from arl.errors import DeadlineError, EngineLost, RunError, TrainerError
from arl.launch.child import RUN_KEY
from arl.sync.buckets import TensorSpec, make_buckets
from arl.sync.published_versions import PublishedVersions
from arl.sync.weight_sender import Rendezvous
from arl.train import channel
from arl.train.channel import (
    Copied,
    Failed,
    Hello,
    Init,
    Join,
    Joined,
    Leave,
    Ping,
    Published,
    Ready,
    Refused,
    Save,
    Saved,
    Send,
    Sent,
    Step,
    Stepped,
    Stop,
    Stopped,
)
from arl.train.packer import Packing, pack_batch
from arl.types import Batch, StepResult, WeightUpdate

DISCONNECT_SETTLES = 0.1  # seconds from the event until the socket knows which peer it was


class TrainerClient:
    """Trainer protocol over worker processes that the launcher starts with `environment` and torchrun's variables.

        async with TrainerClient(init, recipe.advantage, ranks=2, run_key=key, deadlines=Deadlines()) as trainer:
            ...  # start `python -m arl.train.rank` with trainer.environment
            await trainer.ready()
            result = await trainer.step(batch)
            await trainer.stop()

    Args:
        init: what every rank is told first.
        advantage: recipe section; advantages are computed here, where the rewards are.
        ranks: world size.
        run_key: secret of this run; a process that does not know it is refused.
        host: address to listen on; loopback unless ranks run elsewhere.
        published: version -> directory of older versions than init's that are published already.
    """

    def __init__(
        self,
        init: Init,
        advantage: AdvantageSection,
        ranks: int,
        run_key: str,
        deadlines: Deadlines,
        host: str = "127.0.0.1",
        published: Mapping[int, str] | None = None,
    ) -> None:
        self._init, self._ranks, self._run_key, self._deadlines = init, ranks, run_key, deadlines
        flops = model_flops(init.model_path)
        self._packing = Packing.of(*init.sections(), advantage, ranks=ranks, flops=flops)
        self._version = init.version
        self._peers: dict[bytes, Hello] = {}
        self._one_at_a_time = asyncio.Lock()
        self._awaited: tuple[type[Struct], dict[int, Any], asyncio.Future[None]] | None = None
        self._saving: asyncio.Future[None] | None = None
        self._threads: dict[str, asyncio.Future[Any]] = {}  # role of rank 0's thread ─► what it is to say
        self.tensors: tuple[TensorSpec, ...] = ()  # of every version that is published; known when `ready`
        self._published = PublishedVersions(init.kept_versions, {**(published or {}), init.version: init.model_path})
        self._wanted: dict[int, asyncio.Future[WeightUpdate]] = {}
        self._failure: RunError | None = None
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        port = self._socket.bind_to_random_port(f"tcp://{host}")
        self.environment = {channel.ADDRESS: f"tcp://{host}:{port}", RUN_KEY: run_key}

    async def __aenter__(self) -> Self:
        self._hellos = self._expect(Hello)
        self._listener, self._watcher = (
            asyncio.create_task(self._listen()),
            asyncio.create_task(self._watch()),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watcher.cancel()
        self._listener.cancel()
        await asyncio.gather(self._listener, self._watcher, return_exceptions=True)
        self._socket.disable_monitor()
        self._context.destroy(linger=0)

    async def ready(self) -> None:
        """Wait until every rank has said hello and loaded the model.

        Raises:
            DeadlineError: `deadlines.startup` passed; names the ranks.
            TrainerError: a rank could not start.
        """
        await self._collect(self._hellos, self._deadlines.startup, "hello")
        senders = self._hear_from(channel.SENDERS)
        first, *_ = await self._ask([self._init] * self._ranks, Ready, self._deadlines.startup)
        self.tensors = first.tensors
        if self._init.transport == "broadcast":
            async with deadline(self._deadlines.startup, "controller", "the threads that broadcast"):
                await senders

    async def step(self, batch: Batch) -> StepResult:
        """See Trainer. Ranks get only their shard.

        Raises:
            InputError: a trajectory longer than train.capacity.
            TrainerError, DeadlineError: a rank raised, died, or took too long.
        """
        assert batch.version == self._version, f"a batch for version {batch.version} at version {self._version}"
        shards, packing = await asyncio.to_thread(pack_batch, batch, self._packing)
        stepped = await self._ask([Step(shard) for shard in shards], Stepped, self._deadlines.step)
        self._version += 1
        assert {s.version for s in stepped} == {self._version}
        return StepResult(self._version, stepped[0].metrics | packing)

    async def weights(self, version: int) -> WeightUpdate:
        """See Trainer.

        Raises:
            TrainerError, DeadlineError: the publisher raised, died, or took too long.
        """
        self._raise_failure()
        if (update := self._published.find(version)) is not None:
            return update
        wanted = self._wanted.setdefault(version, asyncio.get_running_loop().create_future())
        async with deadline(self._deadlines.swap, "controller", f"the published weights of version {version}"):
            return await asyncio.shield(wanted)

    @property
    def buckets(self) -> list[list[TensorSpec]]:
        """See WeightSender."""
        return make_buckets(self.tensors, self._init.bucket_bytes)

    async def join(self, group: str, world_size: int) -> Rendezvous:
        """See WeightSender."""
        try:
            joined = await self._tell(channel.SENDERS, Join(group, world_size), group)
        except (DeadlineError, EngineLost) as error:  # no engine has a part in this
            raise TrainerError(f"trainer rank 0 opens no group for a broadcast: {error}") from error
        if isinstance(joined, Sent):
            raise TrainerError(f"group {group}: trainer rank 0 could not open it: {joined.error}")
        return Rendezvous(joined.host, joined.port, joined.backend)

    async def send(self, group: str, version: int) -> None:
        """See WeightSender."""
        sent = await self._tell(group, Send(version), group)
        if not isinstance(sent, Sent) or sent.error:
            raise EngineLost(f"group {group}: rank 0 could not send version {version}: {sent}")

    async def leave(self, group: str) -> None:
        """See WeightSender."""
        with contextlib.suppress(zmq.ZMQError):  # the thread has ended with its engine
            await self._socket.send_multipart([self._identity(group), channel.encode(Leave())])

    async def save(self, path: Path) -> None:
        """See Trainer."""
        self._saving = asyncio.get_running_loop().create_future()
        await self._ask([Save(str(path))] * self._ranks, Copied, self._deadlines.step)

    async def saved(self) -> None:
        """See Trainer.

        Raises:
            TrainerError, DeadlineError: the rank that writes raised, died, or took too long.
        """
        assert self._saving is not None, "nothing was saved"
        self._raise_failure()
        async with deadline(self._deadlines.step, "controller", f"the checkpoint after version {self._version}"):
            await asyncio.shield(self._saving)

    async def stop(self) -> None:
        """Let the ranks finish what they publish and end."""
        self._watcher.cancel()  # from here on they may leave
        await self._ask([Stop()] * self._ranks, Stopped, self._deadlines.shutdown)

    async def _tell(self, thread: str, message: Struct, answering: str) -> Joined | Sent:
        """Send `message` to one of rank 0's threads, and wait for what the thread `answering` says."""
        self._raise_failure()
        heard = self._hear_from(answering)
        async with deadline(self._deadlines.swap, "controller", f"rank 0's answer to {message}"):
            try:
                await self._socket.send_multipart([self._identity(thread), channel.encode(message)])
            except zmq.ZMQError as error:
                raise EngineLost(f"rank 0's thread {thread} has ended") from error
            answer: Joined | Sent = await heard
            return answer

    def _hear_from(self, thread: str) -> asyncio.Future[Any]:
        self._threads[thread] = asyncio.get_running_loop().create_future()
        return self._threads[thread]

    def _identity(self, thread: str) -> bytes:
        return next(identity for identity, hello in self._peers.items() if hello.role == thread)

    async def _ask(self, messages: Sequence[Struct], answer: type[Any], seconds: float) -> list[Any]:
        """Send message r to rank r and wait for one `answer` from each, in rank order."""
        async with self._one_at_a_time:
            awaited = self._expect(answer)
            for identity, hello in self._trainers():
                await self._send(identity, hello.rank, messages[hello.rank])
            return await self._collect(awaited, seconds, f"{answer.__name__} of version {self._version}")

    def _expect(self, answer: type[Struct]) -> tuple[type[Struct], dict[int, Any], asyncio.Future[None]]:
        self._raise_failure()
        self._awaited = (answer, {}, asyncio.get_running_loop().create_future())
        return self._awaited

    async def _collect(
        self, awaited: tuple[type[Struct], dict[int, Any], asyncio.Future[None]], seconds: float, what: str
    ) -> list[Any]:
        _, answers, done = awaited
        try:
            async with deadline(seconds, "controller", f"{what} from {self._ranks} trainer ranks"):
                await done
        except DeadlineError as error:
            missing = sorted(set(range(self._ranks)) - set(answers))
            raise DeadlineError(f"{error}; trainer ranks that did not answer: {missing}") from error
        return [answers[rank] for rank in range(self._ranks)]

    async def _listen(self) -> None:
        """Consumes what ranks and publisher say; waits for the next message; unblocked by any of them."""
        while True:
            identity, *data = await self._socket.recv_multipart()
            if identity not in self._peers and not await self._admit(identity, data):
                continue
            try:
                self._deliver(self._peers[identity], channel.decode_from_rank(b"".join(data)))
            except Exception as error:
                self._fail(TrainerError(f"a message of the trainer could not be handled: {error!r}"))
                raise

    async def _admit(self, identity: bytes, data: list[bytes]) -> bool:
        """Whoever can say the run's key is one of us; anybody else is refused, whatever they sent."""
        try:
            message = channel.decode_from_rank(b"".join(data))
        except msgspec.MsgspecError:
            message = None
        known = isinstance(message, Hello) and hmac.compare_digest(message.run_key.encode(), self._run_key.encode())
        if isinstance(message, Hello) and known and 0 <= message.rank < self._ranks:
            self._peers[identity] = message
            if message.role == channel.SENDERS:
                self._threads[channel.SENDERS].set_result(None)
            return True
        with contextlib.suppress(zmq.ZMQError):  # a stranger that has left already needs no answer
            await self._socket.send_multipart([identity, channel.encode(Refused("wrong run key or rank"))])
        return False

    def _deliver(self, sender: Hello, message: channel.FromRank) -> None:
        if isinstance(message, Failed):
            who = f"{sender.role} rank {sender.rank} at version {message.version}"
            self._fail(TrainerError(f"{who} raised:\n{message.trace}"))
        elif isinstance(message, Published):
            self._published.add(message.update)
            for version, wanted in self._wanted.items():
                if version <= message.update.version and not wanted.done():
                    wanted.set_result(message.update)
        elif isinstance(message, Saved):
            if self._saving is not None and not self._saving.done():
                self._saving.set_result(None)
        elif isinstance(message, Joined | Sent):
            heard = self._threads[sender.role]
            if not heard.done():
                heard.set_result(message)
        elif sender.role == "trainer" and self._awaited is not None:
            answer, answers, done = self._awaited
            if not isinstance(message, answer):
                raise TypeError(f"{type(message).__name__} from rank {sender.rank} instead of {answer.__name__}")
            answers[sender.rank] = message
            if len(answers) == self._ranks and not done.done():
                done.set_result(None)

    async def _watch(self) -> None:
        """Consumes disconnections; waits for the next; unblocked by a peer's end. Finds which rank it was."""
        while True:
            await recv_monitor_message(self._monitor)
            await asyncio.sleep(DISCONNECT_SETTLES)
            for identity, hello in self._trainers():
                try:
                    await self._socket.send_multipart([identity, channel.encode(Ping())])
                except zmq.ZMQError as error:
                    if error.errno != zmq.EHOSTUNREACH:
                        raise
                    self._fail(TrainerError(f"trainer rank {hello.rank} died at version {self._version}"))

    async def _send(self, identity: bytes, rank: int, message: Struct) -> None:
        try:
            await self._socket.send_multipart([identity, channel.encode(message)])
        except zmq.ZMQError as error:
            end = f"trainer rank {rank} died at version {self._version}"
            self._fail(TrainerError(f"{end}, before it could be sent {type(message).__name__}: {error}"))
            self._raise_failure()

    def _trainers(self) -> list[tuple[bytes, Hello]]:
        return [(identity, hello) for identity, hello in self._peers.items() if hello.role == "trainer"]

    def _fail(self, error: RunError) -> None:
        """The first failure is the one everybody hears."""
        if self._failure is not None:
            return
        self._failure = error
        waits: list[asyncio.Future[Any]] = [*self._wanted.values(), *self._threads.values()]
        waits += [self._awaited[2]] if self._awaited is not None else []
        waits += [self._saving] if self._saving is not None else []
        for wait in waits:
            if not wait.done():
                wait.set_exception(error)
                wait.exception()  # heard already, should nobody be waiting

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
