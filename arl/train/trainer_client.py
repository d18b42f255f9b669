"""Drive the trainer ranks from the controller: a Trainer over the channel. Torch-free.

    Batch ─► pack_batch ─► one Step per rank ─► Stepped from every rank ─► StepResult
                                          rank 0's publisher: Published ─► weights(version)

One task receives every message, and one for each rank waits for the end of its process. The first failure ends every
wait, present and future. A rank that hangs is named when the deadline of the wait for it has passed.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Self

import msgspec

from arl.clock import deadline, now
from arl.config.recipe import AdvantageSection, Deadlines
from arl.data.model_limits import model_flops
from arl.errors import DeadlineError, DiskError, EngineError, RunError, TrainerError, short_message
from arl.launch.base import Process
from arl.launch.run_secrets import RunSecrets
from arl.metrics.spans import add_span
from arl.sync.buckets import TensorSpec, make_buckets
from arl.sync.group_sender import Rendezvous
from arl.sync.publication_directory import PublishedVersions
from arl.train import channel
from arl.train.channel import CLAIMS, MAIN, SENDERS, Body, Failed, RankAnswer, RankRequest
from arl.train.link import RankConnections
from arl.train.micro_batch import packing_report
from arl.train.packing import Packing, pack_batch, trained_tokens
from arl.types import Batch, StepResult, WeightUpdate

MAX_TRACE = 3000  # characters of a rank's traceback that an error shows; all of it is in the rank's log
SETTLE_SECONDS = 1.0  # in which a death, the tracebacks that follow from it, and the exits after them all arrive

Answers = Mapping[int, asyncio.Future[Any]]  # of several ranks, by rank


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
        trust: RunSecrets,
        deadlines: Deadlines,
        *,
        host: str,
        published: Mapping[int, str] | None = None,
        records: bool = False,
    ) -> None:
        self._init = init
        self._num_ranks = ranks
        self._deadlines = deadlines
        train, objective, _ = init.sections()
        self._packing = Packing(
            train, objective, advantage, ranks=ranks, flops=model_flops(init.model_path), records=records
        )
        self._version = init.version
        known = {**(published or {}), init.version: init.model_path}
        self._published = PublishedVersions(init.kept_versions, known)
        self._made_at: dict[int, float] = {}  # version that is not published yet -> clock seconds
        self._connections = RankConnections(trust, host)
        self._processes: dict[int, Process] = {}  # by rank
        self._endings: list[asyncio.Task[None]] = []
        self._dead: list[Process] = []
        self._raised: RunError | None = None
        self._is_failing = asyncio.Event()  # a process ended, or a rank raised
        self._one_at_a_time = asyncio.Lock()  # one request to all ranks, which all of them take in one order
        self._last_id = 0
        self._asked: dict[int, asyncio.Future[RankAnswer]] = {}  # by id of the request
        self._writing: Answers | None = None
        self.tensors: tuple[TensorSpec, ...] = ()  # of every version that is published; known when `ready`
        self.secrets = trust.secrets  # further variables of every rank
        self.environment = {  # of every rank
            channel.ADDRESS: self._connections.address,
            **trust.environment,
        }

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._failed: asyncio.Future[NoReturn] = loop.create_future()
        self._greetings: Answers = {rank: loop.create_future() for rank in range(self._num_ranks)}
        self._news: asyncio.Future[None] = loop.create_future()  # of the next version that is published
        self._tasks = [
            asyncio.create_task(self._connections.admit(), name="trainer admission"),
            asyncio.create_task(self._listen(), name="trainer channel"),
            asyncio.create_task(self._watch_ranks(), name="trainer watch"),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in (*self._tasks, *self._endings):
            task.cancel()
        await asyncio.wait(self._tasks)
        self._connections.close()

    def watch(self, rank: int, process: Process) -> None:
        """Watch the process of `rank`: its end is the end of every wait."""
        self._processes[rank] = process
        self._endings.append(asyncio.create_task(self._wait_for_end(process), name=f"end of {process}"))

    async def failure(self) -> NoReturn:
        """Wait until a rank has died or raised, and raise why.

        Raises:
            ProcessDied: a rank died; with the end of its log.
            TrainerError: a rank raised; with its traceback.
        """
        await asyncio.shield(self._failed)

    async def ready(self) -> None:
        """Wait until every rank has said hello and loaded the model.

        Raises:
            DeadlineError: `deadlines.startup` passed; names the ranks.
            ProcessDied, TrainerError: a rank could not start.
        """
        meeting, *_ = await self._collect(self._greetings, self._deadlines.startup, "to say hello")
        init = msgspec.structs.replace(self._init, master_address=meeting.address, master_port=meeting.port)
        first, *_ = await self._ask([init] * self._num_ranks, self._deadlines.startup)
        self.tensors = first.tensors

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
        answers = await self._ask([channel.Step(shard) for shard in shards], self._deadlines.step)
        longest_busy = max(answer.busy_seconds for answer in answers)
        packing["time/pack_s"] = max(now() - began - longest_busy, 0.0)  # our clock may have stood still meanwhile
        packing |= packing_report(batch, [answer.sizes for answer in answers], self._packing)
        self._version += 1
        self._made_at[self._version] = now()
        tokens = trained_tokens(batch, shards, [answer.logprobs for answer in answers], self._packing)
        return StepResult(self._version, answers[0].metrics | packing, tokens)

    async def weights(self, version: int) -> WeightUpdate:
        """See Trainer.

        Raises:
            ProcessDied, TrainerError, DeadlineError: the publisher died, raised, or took too long.
        """
        update = await self._at_least(version)
        if update.transport != "broadcast":
            return update
        claimed = await self._ask_rank_0(CLAIMS, channel.Claim(version))
        return await self._at_least(claimed.body.version)

    async def _at_least(self, version: int) -> WeightUpdate:
        """Wait until `version` or a newer one is published."""
        while (update := self._published.find(version)) is None:
            await self._collect({0: self._news}, self._deadlines.swap, f"to publish the weights of version {version}")
        return update

    async def save(self, path: Path) -> None:
        """See Trainer. First waits until the previous save is written, because a rank keeps one copy at a time.

        Raises:
            ProcessDied, TrainerError, DeadlineError: a rank died, raised, or took too long.
        """
        if self._writing is not None:
            await self.saved()
        await self._ask([channel.Copy()] * self._num_ranks, self._deadlines.step)
        self._writing = await self._send([channel.Write(str(path))] * self._num_ranks)

    async def saved(self) -> None:
        """See Trainer.

        Raises:
            ProcessDied, TrainerError, DeadlineError: a rank died, raised, or took too long to write its part.
        """
        assert self._writing is not None, "nothing was saved"
        await self._collect(self._writing, self._deadlines.step, "to write the checkpoint")

    async def stop(self) -> None:
        """Let the ranks finish what they publish, and exit.

        Raises:
            TrainerError, DeadlineError: a rank raised, or took longer than 10 s and a margin.
        """
        for ending in self._endings:  # because the end of a rank is no failure from here on
            ending.cancel()
        await self._ask([channel.Stop()] * self._num_ranks, self._deadlines.ranks_stop)

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
            joined = await self._ask_rank_0(SENDERS, channel.Join(group, world_size))
        except DeadlineError as error:
            raise TrainerError(f"trainer rank 0 opens no group for a broadcast: {error}") from error
        if joined.error:
            raise TrainerError(f"group {group}: trainer rank 0 could not open it: {joined.error}")
        return Rendezvous(joined.body.host, joined.body.port, joined.body.backend)

    async def send(self, group: str, version: int) -> None:
        """See WeightSender."""
        sent = await self._ask_rank_0(group, channel.Send(version))
        if sent.error:
            raise EngineError(f"group {group}: trainer rank 0 could not send version {version}: {sent.error}")

    async def leave(self, group: str) -> None:
        """See WeightSender."""
        await self._request(0, group, channel.Leave())

    # ---- asking

    async def _ask(self, bodies: Sequence[Body], seconds: float) -> list[Any]:
        """Send request r to rank r, and return the body of every answer, in the order of ranks."""
        async with self._one_at_a_time:
            answers = await self._send(bodies)
            answered = await self._collect(answers, seconds, f"to answer {type(bodies[0]).__name__}")
        return [answer.body for answer in answered]

    async def _ask_rank_0(self, thread: str, body: Body) -> Any:
        """Send a request to a thread of rank 0, and return its answer."""
        answers = {0: await self._request(0, thread, body)}
        (answer,) = await self._collect(answers, self._deadlines.swap, f"to answer {body}")
        return answer

    async def _send(self, bodies: Sequence[Body]) -> Answers:
        """Send request r to the main thread of rank r."""
        return {rank: await self._request(rank, MAIN, body) for rank, body in enumerate(bodies)}

    async def _request(self, rank: int, thread: str, body: Body) -> asyncio.Future[RankAnswer]:
        """Send one request; its answer may never be looked at."""
        self._last_id += 1
        request = RankRequest(self._last_id, thread, body)
        answered: asyncio.Future[RankAnswer] = asyncio.get_running_loop().create_future()
        self._asked[request.id] = answered
        await self._connections.send(rank, request)
        return answered

    async def _collect(self, answers: Answers, seconds: float, what: str) -> list[Any]:
        """Wait for every answer. An answer outlives a wait that is given up.

        Args:
            what: the ranks are to do, as in "to answer Step".

        Raises:
            RunError: the trainer has failed, before or meanwhile.
            DeadlineError: names the ranks that have not answered, and shows the ends of their logs.
        """

        def missing() -> list[int]:
            return [rank for rank, answered in answers.items() if not answered.done()]

        def awaited() -> str:
            late = missing()
            hellos = self._connections.hellos
            names = " and ".join(str(hellos.get(rank, f"trainer rank {rank} (not connected)")) for rank in late)
            num_answered = len(answers) - len(late)
            return f"{names} at version {self._version} {what}; {num_answered} of {len(answers)} ranks have answered"

        try:
            async with deadline(seconds, "controller", awaited):
                for answered in answers.values():
                    await asyncio.wait([answered, self._failed], return_when=asyncio.FIRST_COMPLETED)
                    if self._failed.done():
                        self._failed.result()
        except DeadlineError as error:
            late = [self._processes[rank] for rank in missing() if rank in self._processes]
            logs = "".join(f"\n{process.log_tail()}" for process in late)
            raise DeadlineError(f"{error}{logs}") from error
        return [answered.result() for answered in answers.values()]

    # ---- receiving

    async def _listen(self) -> None:
        """Consumes messages of the ranks; waits for the next; unblocked by any of them."""
        try:
            while True:
                rank, message = await self._connections.receive()
                if isinstance(message, channel.Failed):
                    self._raised = self._raised or _error_of(str(self._connections.hellos[rank]), message)
                    self._is_failing.set()
                elif isinstance(message, channel.Published):
                    self._add_published(message.update)
                elif isinstance(message, RankAnswer):
                    self._asked.pop(message.id).set_result(message)
                else:
                    self._greetings[rank].set_result(message)
        except Exception as error:  # nobody would answer any more, so it must end every wait
            self._fail(error)

    async def _wait_for_end(self, process: Process) -> None:
        await process.ended()
        self._dead.append(process)
        self._is_failing.set()

    async def _watch_ranks(self) -> None:
        """Wait until a rank has died or raised, and end every wait with the cause.

        A rank that a signal killed makes others raise, because their collectives break, and a rank that raises exits
        as well. These events come in any order within moments. So a killed rank is the cause, else the first
        traceback, else the exit.
        """
        await self._is_failing.wait()
        await asyncio.sleep(SETTLE_SECONDS)
        killed = [process for process in self._dead if process.exit_code is not None and process.exit_code < 0]
        if killed:
            self._fail(await killed[0].died())
        elif self._raised is not None:
            self._fail(self._raised)
        else:
            self._fail(await self._dead[0].died())

    def _fail(self, error: Exception) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)
            self._failed.exception()  # marks it as seen: no task may be waiting for it

    def _add_published(self, update: WeightUpdate) -> None:
        """Wake who waits for this version or for an older one, which is skipped."""
        version = update.version
        self._published.add(update)
        begun = self._made_at.get(version, now())
        self._made_at = {made: at for made, at in self._made_at.items() if made > version}
        add_span("trainer", "publication", f"publication of version {version}", begun, now())
        self._news.set_result(None)
        self._news = asyncio.get_running_loop().create_future()


def _error_of(rank: str, failed: Failed) -> TrainerError | DiskError:
    """Return the error of a rank that has raised. It shows the end of a traceback, which says what happened."""
    who = f"{failed.thread} {rank.removeprefix('trainer ')} at version {failed.version}"
    if failed.is_expected:
        kind = DiskError if failed.is_of_disk else TrainerError
        return kind(f"{who}: {short_message(failed.text)}")
    cut = "…" if len(failed.text) > MAX_TRACE else ""
    return TrainerError(f"{who} raised:\n{cut}{failed.text[-MAX_TRACE:]}")
