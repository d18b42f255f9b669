"""Run both sides of the system at one precision: engines, trainer, logprobs and, once, every transport.

engine servers of every backend ∥ trainer ranks of every transport          started at once
      │ busy: tokens/s, answers          │
      └──────────► one batch of all answers ─► steps: loss falls, tokens/s ─► logprobs beside those of the engines
each backend × each transport: a swap under load ─► logprobs with the new weights
"""

import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from arl.launch.host_memory import free_memory
from arl.run.smoke.busy_engines import GROUP, SampledAnswer, generate
from arl.run.smoke.kept_open import KeptOpen, close_all
from arl.run.smoke.logprob_table import Compared, judge
from arl.run.smoke.outcomes import describe_engine, describe_logprobs, describe_swap, describe_trainer
from arl.run.smoke.repeated_batch import TrainedStep, behavior, joined, make_batch, random_answers, step
from arl.run.smoke.smoke_sides import EngineSide, Place, TrainerSide, open_engines, open_ranks
from arl.run.smoke.smoke_trials import BETWEEN_PROCESSES, Trial
from arl.run.smoke.smoke_types import LogprobRow, Precision, StageOutcome
from arl.run.smoke.stage_runner import StageRunner
from arl.run.smoke.weight_swaps import swap, trainers_turn
from arl.types import Batch, Transport

# Deadlines of stages, seconds.
ENGINE = 110.0  # with its start, beside those of the other processes
TRAINER = 60.0
SWAP = 40.0
END = 30.0

BUSY_SECONDS = 3.0  # of each backend
OWN_PROCESSES = 3  # of a server under an interpreter of its own
PROCESS_BYTES = 1.2e9  # of host memory; one that has imported torch takes about half of that
STEPS = 4  # on the same batch


@dataclass
class Round:
    """Hold one precision: its trials, what runs of them, and what they answered.

    Args:
        runner: runs the stages.
        where: for the processes.
        precision: of both sides.
        trials: by kind of backend.
        vocab_size: of the small model.
        on_gpus: both sides compute on GPUs.
        swaps: try every transport. False: one rank publishes, and nothing is loaded.
    """

    runner: StageRunner
    where: Place
    precision: Precision
    trials: dict[str, Trial]
    vocab_size: int
    on_gpus: bool
    swaps: bool
    rows: list[LogprobRow] = field(default_factory=list)
    engines: dict[str, KeptOpen[EngineSide]] = field(default_factory=dict)
    ranks: dict[Transport, KeptOpen[TrainerSide]] = field(default_factory=dict)
    answers: dict[str, list[SampledAnswer]] = field(default_factory=dict)

    async def run(self, start_next: Callable[[], None]) -> None:
        """Run every stage of this precision, after a start if need be.

        Args:
            start_next: is called when all processes of this one have started, and before the swaps.
        """
        if not self.engines:
            self.start()
        for kind in self.trials:
            work = functools.partial(self._generate, kind)
            await self.runner.run(self._name("engine", kind), ENGINE, work)
        await self._compare_at_start()
        start_next()
        if self.swaps:
            for kind, trial in self.trials.items():
                await self._swap_by_each(kind, trial)

    def _name(self, what: str, kind: str = "") -> str:
        return f"{what} {kind}, {self.precision}" if kind else f"{what}, {self.precision}"

    # ---- processes

    def start(self) -> None:
        """Start all processes at once, without waiting for them."""
        for transport in self._transports:
            logs = self._logs("trainer", transport)
            opening = functools.partial(open_ranks, self.where, self._rank_trial, logs, transport)
            self.ranks[transport] = KeptOpen(f"trainer by {transport}", opening)
        for kind, trial in self.trials.items():
            starting = functools.partial(self._open_engines, kind, trial)
            self.engines[kind] = KeptOpen(f"engine {kind}", starting)

    @property
    def _transports(self) -> list[Transport]:
        """Return the transports by which ranks publish: all that a backend can take, or one where nothing is loaded."""
        known: list[Transport] = []
        for transport in BETWEEN_PROCESSES:
            if any(transport in trial.transports for trial in self.trials.values()):
                known.append(transport)
        return known if self.swaps else known[:1]

    async def close(self) -> None:
        """End all processes, engines first, because they have connections to the ranks."""
        engines = list(self.engines.values())
        ranks = list(self.ranks.values())
        if not engines and not ranks:
            return

        async def end() -> StageOutcome:
            try:
                await close_all(engines)
            finally:
                await close_all(ranks)
            return StageOutcome(said=f"{len(engines) + len(ranks)} groups of processes have ended")

        await self.runner.end(self._name("end"), END, end)
        self.engines.clear()
        self.ranks.clear()

    @property
    def fits_beside_another(self) -> bool:
        """Return whether its processes may start while those of another precision run: not on a GPU's memory."""
        processes = len(self.ranks) or 1
        for trial in self.trials.values():
            own = OWN_PROCESSES if trial.found.capabilities.own_interpreter else 1
            processes += own * trial.recipe.engine.replicas + trial.recipe.train.ranks
        return not self.on_gpus and free_memory() > processes * PROCESS_BYTES

    @contextlib.asynccontextmanager
    async def _open_engines(self, kind: str, trial: Trial) -> AsyncIterator[EngineSide]:
        sender = None
        if "broadcast" in self.ranks:
            ranks = await self.ranks["broadcast"].opened()
            sender = ranks.trainer if ranks is not None else None
        async with open_engines(self.where, trial, self._logs("engine", kind), sender) as side:
            yield side

    def _logs(self, side: str, name: str) -> str:
        safe = name.replace(":", "-")
        return f"{self.precision.engine}-{self.precision.train}-{side}-{safe}"

    @property
    def _rank_trial(self) -> Trial:
        """Return a trial whose ranks compute checksums, if any backend can compare them."""
        trials = list(self.trials.values())
        return next((trial for trial in trials if trial.recipe.sync.check), trials[0])

    # ---- stages

    async def _generate(self, kind: str) -> StageOutcome:
        async def measure(side: EngineSide) -> StageOutcome:
            generated = await generate(side.router, side.demand("start", self.vocab_size), BUSY_SECONDS)
            self.answers[kind] = generated.answers
            return describe_engine(side, generated)

        return await self.engines[kind].use(measure)

    async def _compare_at_start(self) -> None:
        """Train on the answers of all backends at once, while the weights are still those that sampled them."""
        answers = self.answers or {"": random_answers(self.vocab_size)}
        batches = {kind: make_batch(own, version=0) for kind, own in answers.items()}
        transport = next(iter(self.ranks))
        steps: list[TrainedStep] = []

        async def train(side: TrainerSide) -> StageOutcome:
            start_seconds = await side.ready()
            async with self._trainers_turn():
                batch = joined(list(batches.values()))
                for _ in range(STEPS):
                    steps.append(await step(side, batch, side.version))
                    side.version = steps[-1].result.version
            return describe_trainer(start_seconds, batch, steps)

        work = functools.partial(self.ranks[transport].use, train)
        await self.runner.run(self._name("trainer"), TRAINER, work)
        for kind in self.trials:
            name = self._name("logprobs", kind)
            if kind not in self.answers or not steps:
                self.runner.skip(name, "an engine did not generate, or the trainer did not step")
                continue
            row = self._row(kind, list(batches), batches, steps[0])
            self.rows.append(row)
            self.runner.record(name, describe_logprobs(row))

    def _row(self, kind: str, order: Sequence[str], batches: dict[str, Batch], first: TrainedStep) -> LogprobRow:
        """Compare one backend's logprobs with its part of what the first step computed of the joined batch."""
        before = order[: order.index(kind)]
        begin = sum(_num_sampled(batches[name]) for name in before)
        end = begin + _num_sampled(batches[kind])
        current = first.tokens.current_logprobs
        own = None if current is None else current[begin:end]
        logprobs, versions, places = behavior(batches[kind])
        compared = Compared.of(logprobs, own, places, versions == 0)
        return judge(
            compared,
            engine=kind,
            precision=self.precision,
            weights="of the start",
            on_gpus=self.on_gpus,
        )

    @contextlib.asynccontextmanager
    async def _trainers_turn(self) -> AsyncIterator[None]:
        """Pause the engines that have started, where they share the trainer's devices."""
        async with contextlib.AsyncExitStack() as stack:
            for kind in self.answers:
                side = await self.engines[kind].opened()
                if side is not None:
                    is_collocated = side.trial.recipe.mode == "collocated"
                    await stack.enter_async_context(trainers_turn(side.router, is_collocated))
            yield

    async def _swap_by_each(self, kind: str, trial: Trial) -> None:
        for transport in BETWEEN_PROCESSES:
            name = self._name(f"swap by {transport}", kind)
            if transport in trial.refused:
                self.runner.skip(name, trial.refused[transport])
            elif kind not in self.answers:
                self.runner.skip(name, f"engine {kind} did not generate")
            else:
                await self.runner.run(name, SWAP, functools.partial(self._swap, kind, transport))

    async def _swap(self, kind: str, transport: Transport) -> StageOutcome:
        batch = make_batch(self.answers[kind][:GROUP], version=0)

        async def with_engines(engines: EngineSide) -> StageOutcome:
            async def with_ranks(ranks: TrainerSide) -> StageOutcome:
                swapped = await swap(
                    engines,
                    ranks,
                    batch,
                    transport=transport,
                    vocab_size=self.vocab_size,
                    precision=self.precision,
                    on_gpus=self.on_gpus,
                )
                self.rows.append(swapped.row)
                return describe_swap(swapped)

            return await self.ranks[transport].use(with_ranks)

        return await self.engines[kind].use(with_engines)


def _num_sampled(batch: Batch) -> int:
    logprobs, _, _ = behavior(batch)
    return len(logprobs)
