"""Drive the trainer ranks from the controller: a Trainer over the channel. Torch-free.

    Batch ─► pack_batch ─► one Step per rank ─► Stepped from every rank ─► StepResult
                                          rank 0's publisher: Published ─► weights(version)

One task receives every message and gives it to whoever waits for it, and another waits for a rank to die or to raise
(RankWatch). The first failure ends every wait, present and future (Waits).
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from msgspec import Struct

from arl.clock import now
from arl.config.recipe import AdvantageSection, Deadlines
from arl.data.model_limits import model_flops
from arl.errors import DeadlineError, EngineError, TrainerError
from arl.launch.base import Process
from arl.launch.trust import RunTrust
from arl.sync.buckets import TensorSpec, make_buckets
from arl.sync.weight_sender import Rendezvous
from arl.train import channel
from arl.train.announced_versions import AnnouncedVersions
from arl.train.packer import Packing, pack_batch
from arl.train.rank_connections import RankConnections
from arl.train.rank_watch import RankWatch, describe_failure
from arl.train.shard import packing_report
from arl.train.trained_tokens import trained_tokens
from arl.train.waits import Answers, ThreadAnswers, Waits, WatchedTasks, set_if_waiting
from arl.types import Batch, StepResult, WeightUpdate


class TrainerClient:
    """Implement Trainer and WeightSender with rank processes.

    A launcher starts them with `environment` and torchrun's variables:

        async with TrainerClient(init, recipe.advantage, 2, trust, recipe.deadlines, host="127.0.0.1") as trainer:
            for rank in range(2):
                ...  # start `python -m arl.train.rank` with trainer.environment and trainer.secrets
                trainer.watch(rank, process)
            await trainer.ready()
            result = await trainer.step(batch)
            await trainer.stop()

    Args:
        init: the first message to every rank.
        advantage: recipe section; advantages are computed here, where the rewards are.
        ranks: world size.
        trust: secrets of this run; a process that does not know its key is refused.
        deadlines: of a start, a step, a publication and the end.
        host: address to listen on.
        published: version -> directory of versions that are older than init's and published already.
        records: report what is computed of each token, for the trajectory files.
    """

    def __init__(
        self,
        init: channel.Init,
        advantage: AdvantageSection,
        ranks: int,
        trust: RunTrust,
        deadlines: Deadlines,
        *,
        host: str,
        published: Mapping[int, str] | None = None,
        records: bool = False,
    ) -> None:
        self._init = init
        self._num_ranks = ranks
        self._deadlines = deadlines
        train, objective = init.sections()
        self._packing = Packing.of(
            train, objective, advantage, ranks=ranks, flops=model_flops(init.model_path), records=records
        )
        self._version = init.version
        self._waits = Waits()
        known = {**(published or {}), init.version: init.model_path}
        self._announced = AnnouncedVersions(known, init.kept_versions, self._waits)
        self._ranks = RankWatch()
        self._connections = RankConnections(trust, host)
        self._one_at_a_time = asyncio.Lock()  # one request to all ranks
        self._one_claim_at_a_time = asyncio.Lock()
        self._answers: Answers | None = None
        self._saving: Answers | None = None
        self._thread_answers = ThreadAnswers(self._waits)
        self._connected: dict[str, asyncio.Future[None]] = {}  # by role of a thread that lasts as long as rank 0
        self._tasks = WatchedTasks(self._waits)
        self.environment = {  # of every rank
            **self._connections.environment,
            channel.STARTUP_SECONDS: str(deadlines.first_message),
        }
        self.secrets = self._connections.secrets  # further variables of every rank
        self.tensors: tuple[TensorSpec, ...] = ()  # of every version that is published; known when `ready`

    async def __aenter__(self) -> Self:
        self._answers = self._expect()
        for role in (channel.SENDERS, channel.CLAIMS):
            self._connected[role] = self._waits.new()
        self._tasks.begin("trainer admission", self._connections.admit())
        self._tasks.begin("trainer messages", self._listen())
        self._tasks.begin("trainer deaths", self._watch_ranks())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ranks.close()
        await self._tasks.close()
        self._connections.close()

    def watch(self, rank: int, process: Process) -> None:
        """Watch the process of `rank`: its end is the end of every wait."""
        self._ranks.add(rank, process)

    async def failure(self) -> NoReturn:
        """Wait until a rank has died or raised, and raise why.

        Raises:
            ProcessDied: a rank died; with the end of its log.
            TrainerError: a rank raised; with its traceback.
        """
        await self._waits.failure()

    async def ready(self) -> None:
        """Wait until every rank has said hello and loaded the model.

        Raises:
            DeadlineError: `deadlines.startup` passed; names the ranks.
            ProcessDied, TrainerError: a rank could not start.
        """
        assert self._answers is not None
        await self._collect(self._answers, self._deadlines.startup, "to say hello")
        init = self._ranks.with_meeting(self._init)
        first, *_ = await self._ask([init] * self._num_ranks, channel.Ready, self._deadlines.startup)
        self.tensors = first.tensors
        if self._init.transport == "broadcast":
            async with self._rank_0_deadline(self._deadlines.startup, "to start the threads that broadcast"):
                await asyncio.gather(*self._connected.values())

    async def step(self, batch: Batch) -> StepResult:
        """See Trainer. Each rank gets only its slice of the batch.

        Raises:
            InputError: a trajectory is longer than train.capacity.
            ProcessDied, TrainerError: a rank died or raised.
            DeadlineError: `deadlines.step` passed; names the ranks with pid and version. The controller's own deadline
                for a step is an outer one, so that this message comes first.
        """
        assert batch.version == self._version, f"a batch for version {batch.version} at version {self._version}"
        began = now()
        shards, packing = await asyncio.to_thread(pack_batch, batch, self._packing)
        steps = [channel.Step(shard) for shard in shards]
        answers = await self._ask(steps, channel.Stepped, self._deadlines.step)
        longest_busy = max(answer.busy_seconds for answer in answers)
        packing["time/pack_s"] = max(now() - began - longest_busy, 0.0)  # our clock may have stood still meanwhile
        sizes = [answer.sizes for answer in answers]
        packing |= packing_report(batch, sizes, self._packing)
        self._version += 1
        self._announced.made(self._version)
        of_ranks = [answer.logprobs for answer in answers]
        tokens = trained_tokens(batch, shards, of_ranks, self._packing)
        return StepResult(self._version, answers[0].metrics | packing, tokens)

    async def weights(self, version: int) -> WeightUpdate:
        """See Trainer.

        Raises:
            ProcessDied, TrainerError, DeadlineError: the publisher died, raised, or took too long.
        """
        update = await self._wait_announced(version)
        if update.transport != "broadcast":
            return update
        async with self._one_claim_at_a_time:
            claimed = await self._claim(version)
        return await self._wait_announced(claimed)

    async def _wait_announced(self, version: int) -> WeightUpdate:
        """Wait until `version` or a newer one is published."""
        async with self._rank_0_deadline(self._deadlines.swap, f"to publish the weights of version {version}"):
            return await self._announced.at_least(version)

    async def _claim(self, version: int) -> int:
        """Have rank 0 keep the newest version, `version` at least, until engines are sent a newer one; return it."""
        try:
            claimed: channel.Claimed = await self._ask_thread(channel.CLAIMS, channel.Claim(version), channel.CLAIMS)
        except ConnectionError as error:
            raise TrainerError(f"trainer rank 0 keeps no version for engines: {error}") from error
        return claimed.version

    async def save(self, path: Path) -> None:
        """See Trainer. First waits until the previous save is written, because a rank keeps one copy at a time.

        Raises:
            ProcessDied, TrainerError, DeadlineError: a rank died, raised, or took too long.
        """
        if self._saving is not None:
            await self.saved()
        self._saving = self._expect()
        await self._ask([channel.Save(str(path))] * self._num_ranks, channel.Copied, self._deadlines.step)

    async def saved(self) -> None:
        """See Trainer.

        Raises:
            ProcessDied, TrainerError, DeadlineError: a rank died, raised, or took too long to write its part.
        """
        assert self._saving is not None, "nothing was saved"
        self._waits.check()
        await self._collect(self._saving, self._deadlines.step, f"at version {self._version} to write the checkpoint")

    async def stop(self) -> None:
        """Let the ranks finish what they publish, and exit.

        Raises:
            TrainerError, DeadlineError: a rank raised, or took longer than 10 s and a margin.
        """
        self._ranks.close()  # because the end of a rank is no failure from here on
        await self._ask([channel.Stop()] * self._num_ranks, channel.Stopped, self._deadlines.ranks_stop)

    # ---- WeightSender

    @property
    def buckets(self) -> list[list[TensorSpec]]:
        """See WeightSender."""
        return make_buckets(self.tensors, self._init.bucket_bytes)

    async def join(self, group: str, world_size: int) -> Rendezvous:
        """See WeightSender.

        Raises:
            TrainerError: rank 0 could not open the group. No engine has a part in that.
        """
        try:
            joined = await self._ask_thread(channel.SENDERS, channel.Join(group, world_size), group)
        except (DeadlineError, ConnectionError) as error:
            raise TrainerError(f"trainer rank 0 opens no group for a broadcast: {error}") from error
        if isinstance(joined, channel.Sent):
            raise TrainerError(f"group {group}: trainer rank 0 could not open it: {joined.error}")
        return Rendezvous(joined.host, joined.port, joined.backend)

    async def send(self, group: str, version: int) -> None:
        """See WeightSender."""
        try:
            sent: channel.Sent = await self._ask_thread(group, channel.Send(version), group)
        except ConnectionError as error:
            raise EngineError(f"group {group}: {error}") from error
        if sent.error:
            raise EngineError(f"group {group}: trainer rank 0 could not send version {version}: {sent.error}")

    async def leave(self, group: str) -> None:
        """See WeightSender."""
        with contextlib.suppress(ConnectionError):  # the thread has ended with its group
            await self._connections.send(group, 0, channel.Leave())

    async def _ask_thread(self, thread: str, message: Struct, answering: str) -> Any:
        """Send `message` to one of rank 0's threads, and wait for an answer of the thread `answering`.

        Raises:
            ConnectionError: a thread is gone, or has never connected.
        """
        answered = self._thread_answers.next(answering)
        try:
            async with self._rank_0_deadline(self._deadlines.swap, f"to answer {message}"):
                await self._send_question(thread, message, answering)
                return await answered
        finally:
            answered.cancel()

    async def _send_question(self, thread: str, message: Struct, answering: str) -> None:
        try:
            await self._connections.send(thread, 0, message)
        except ConnectionError:
            self._thread_answers.not_asked(answering)
            raise

    # ---- waiting

    def _expect(self) -> Answers:
        return Answers(self._num_ranks, self._waits.new())

    async def _ask(self, messages: Sequence[Struct], answer: type[Any], seconds: float) -> list[Any]:
        """Send message r to rank r, and wait for one `answer` from each, in the order of ranks."""
        async with self._one_at_a_time:
            self._answers = self._expect()
            for rank, message in enumerate(messages):
                # A rank whose connection is gone has died. RankWatch reports that, and ends the wait below.
                with contextlib.suppress(ConnectionError):
                    await self._connections.send(channel.TRAINER, rank, message)
            request = type(messages[0]).__name__
            what = f"at version {self._version} to answer {request} with {answer.__name__}"
            return await self._collect(self._answers, seconds, what)

    async def _collect(self, answers: Answers, seconds: float, what: str) -> list[Any]:
        def progress() -> str:
            return f"{what}; {len(answers.by_rank)} of {self._num_ranks} ranks have answered"

        async with self._ranks.deadline(seconds, answers.missing, progress):
            await asyncio.shield(answers.complete)
        return [answers.by_rank[rank] for rank in range(self._num_ranks)]

    def _rank_0_deadline(self, seconds: float, what: str) -> contextlib.AbstractAsyncContextManager[None]:
        """Bound a wait for something that rank 0 alone does."""
        return self._ranks.deadline(seconds, lambda: {0}, lambda: f"at version {self._version} {what}")

    # ---- receiving

    async def _listen(self) -> None:
        """Consumes messages of the ranks and their threads; waits for the next; unblocked by any of them.

        Raises:
            TrainerError: one is wrong; names its sender.
        """
        while True:
            sender, message = await self._connections.receive()
            self._deliver(sender, message)

    async def _watch_ranks(self) -> None:
        """Wait until a rank has died or raised; then end every wait."""
        self._waits.fail(await self._ranks.failure())

    def _deliver(self, sender: channel.Hello, message: channel.FromRank) -> None:
        """Give a message to whoever waits for it."""
        if isinstance(message, channel.Failed):
            self._ranks.raised(describe_failure(sender, message))
        elif isinstance(message, channel.Published):
            self._announced.add(message.update)
        elif isinstance(message, channel.Saved):
            assert self._saving is not None, "nothing was saved"
            self._saving.add(sender.rank, message)
        elif isinstance(message, channel.Joined | channel.Sent | channel.Claimed):
            self._thread_answers.add(sender.role, message)
        elif isinstance(message, channel.Left):
            self._thread_answers.left(sender.role)
        elif sender.role == channel.TRAINER:
            if isinstance(message, channel.Hello):
                self._ranks.greeted(message)
            assert self._answers is not None
            self._answers.add(sender.rank, message)
        elif sender.role in self._connected:
            set_if_waiting(self._connected[sender.role], None)
