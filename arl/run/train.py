"""Run one recipe, from its start or a checkpoint to its end, in whatever world it names.

    recipe ─► make_world ─► begin ─► starting model ─► segment ─► … ─► segment ─► summary
                              │      (warm-up, cached)
                              └ everything that can be refused is refused here, before anything starts

    a segment, on the world's clock:

    World.open ─► evaluate ─► Recorder ◄─ events ─ Controller: problems ─► episodes ─► batches ─► steps ─► weights
                                  │                    └─► checkpoints
                                  └─► metrics, trajectories, trace                 ─► evaluate ─► Outcome

A run on the wall clock is one segment. In virtual time each checkpoint ends a segment, and the next one is built from
the checkpoint's files, as a resumed run is, so that the two cannot differ.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TypeVar

import msgspec

from arl import clock
from arl.config.recipe import Recipe
from arl.errors import RunError
from arl.files import replace_file, writing
from arl.launch.base import make_launcher
from arl.metrics.console import ConsoleDisplay
from arl.metrics.names import Record, number
from arl.metrics.recorder import Meters, Recorder
from arl.metrics.run_files import LOGS, SUMMARY
from arl.metrics.spans import recorded_spans, span
from arl.metrics.summary import Summary, TrainerMemory, mean_idle, weights_sha256
from arl.metrics.trackers import make_trackers
from arl.rollout.controller import Controller
from arl.run.checkpoint import ResumePoint, RunSnapshot, next_checkpoint
from arl.run.clean_stop import failures_with_resume_command, not_saved, stopped, stopped_by_signals
from arl.run.evaluation.during import Evaluations, SteppedObserver
from arl.run.evaluation.scoreboard import CHECKPOINTS, Scoreboard
from arl.run.failures import describe_pause, explain_deaths, reported_failures
from arl.run.machines import fit_to_what_is_left, resolve_auto
from arl.run.resume import begin, pin_sources, run_to_resume
from arl.run.starting_model import starting_model
from arl.run.status_writer import StatusWriter, written_status
from arl.run.world import Parts, RunContext, World, make_world
from arl.types import Accuracy

T = TypeVar("T")
MEMORY = "hardware/memory_gb"


# ---- the story of a run


def train(recipe: Recipe, display: ConsoleDisplay, resume: Path | None = None, world: World | None = None) -> Summary:
    """Run `recipe` to its end.

    Args:
        resume: the recipe's file, to go on from the last checkpoint of the newest run of that recipe.
        world: None: the one that the recipe names.

    Raises:
        InputError: something is known to fail; nothing was started.
        RunError: the one failure that ended the run; none of its processes is left.
        RunStopped: Ctrl-C or SIGTERM has stopped it; the newest version is saved.
    """
    began = perf_counter()
    world = world or make_world(recipe.world)
    resumed = None
    if resume is not None:
        recipe = fit_to_what_is_left(recipe, display.note)
        resumed = run_to_resume(recipe, resume)
    recipe, notes = pin_sources(resolve_auto(recipe), resumed)
    for note in notes:
        display.note(note)
    with (
        world.process_settings(),
        begin(recipe, display, resumed) as begun,
        failures_with_resume_command(begun.directory),
    ):
        context = begun
        if begun.resumed is None:
            context = replace(context, first_model=_make_starting_model(context))
        while world.traits.restarts_at_checkpoints and not context.is_done:
            until = next_checkpoint(recipe, context.version)
            outcome, _ = _run_segment(world, context, until, is_last=False, began=began)
            checkpoint = context.directory / CHECKPOINTS / f"step_{outcome.controller.version}"
            context = replace(context, resumed=ResumePoint.load(checkpoint))
        outcome, end = _run_segment(world, context, recipe.train.steps, is_last=True, began=began)
        if outcome.controller.is_stopping:
            raise stopped(context.directory, outcome.controller.version)
        return _summarize(context, outcome, end - world.traits.start_time)


def _make_starting_model(context: RunContext) -> Path:
    """Make version 0, on the wall clock in every world, because a warm-up is a process."""

    async def make(status: StatusWriter) -> Path:
        async with make_launcher(context.recipe, context.directory / LOGS) as launcher, explain_deaths(launcher):
            return await starting_model(context.recipe, context.directory, launcher, context.display)

    return _on_clock(context, "making the starting model", make)


def _run_segment(
    world: World, context: RunContext, until: int, *, is_last: bool, began: float
) -> tuple["Outcome", float]:
    """Run one segment on the world's clock; return its outcome, and the clock at its end.

    The clock goes on where the segment's checkpoint was taken. A wall clock also counts what this command has taken.
    """
    known = None if context.resumed is not None else world.known_accuracy(context)

    async def run(status: StatusWriter) -> tuple[Outcome, float]:
        with recorded_spans():
            async with world.open(context) as parts:
                outcome = await SegmentRun(context, parts, status, until, is_last).run(known)
        return outcome, clock.now()

    is_virtual = world.traits.virtual_time
    taken = 0.0 if is_virtual else perf_counter() - began
    start = world.traits.start_time + context.time + taken
    return _on_clock(context, "starting engines and trainer", run, is_virtual, start)


def _on_clock(
    context: RunContext,
    stage: str,
    work: Callable[[StatusWriter], Awaitable[T]],
    is_virtual: bool = False,
    start: float = 0.0,
) -> T:
    """Run `work` on a clock that begins at `start`, with status.json written and one failure reported."""

    async def main() -> T:
        async with reported_failures(), written_status(context, stage) as status:
            return await work(status)

    note = context.display.note
    return clock.run(main, is_virtual, start, on_pause=lambda seconds: note(describe_pause(seconds)))


# ---- a segment


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Hold what is left of a segment when its world is closed."""

    before: Accuracy | None
    after: Accuracy | None
    training_seconds: float  # of the clock, from the first admission to the last swap
    recorder: Recorder
    controller: Controller


@dataclass(frozen=True)
class SegmentRun:
    """Run one segment over an opened world: evaluate, train and record until version `until`, evaluate."""

    context: RunContext
    parts: Parts
    status: StatusWriter
    until: int
    is_last: bool  # the run is evaluated at its end

    async def run(self, known: Accuracy | None) -> Outcome:
        """Run it; `known` is the accuracy before training, if nobody has to measure it."""
        context = self.context
        self.status.parts = self.parts
        if context.resumed is not None:
            known = context.resumed.state.before
        elif known is None:
            self.status.stage = "evaluation before training"
            known = await self._evaluate(context.version, "before training")
        self.status.stage = "waiting for the trainer to be ready"
        await self.parts.ready()
        outcome = await self._train_and_record(known)
        is_stopped = outcome.controller.is_stopping
        self.status.end = f"stopped at version {outcome.controller.version}" if is_stopped else "finished"
        return outcome

    async def _evaluate(self, version: int, when: str) -> Accuracy | None:
        problems = self.context.plan.held_out
        if not problems:
            return None
        with span("evaluation", f"version {version} {when}"):
            accuracy = await self.parts.evaluate(problems, version)
        reward = f"{accuracy.mean_reward:.3f}"
        self.context.display.note(f"accuracy {when}: {reward} on {accuracy.problems} held-out problems")
        return accuracy

    async def _train_and_record(self, before: Accuracy | None) -> Outcome:
        context = self.context
        recipe = context.recipe
        parts = self.parts
        restored = None if context.resumed is None else context.resumed.state
        with Recorder(
            context.directory,
            recipe.output.trajectories,
            make_trackers(recipe, context.directory, context.display.note),
            parts.display,
            codec=parts.codec,
            samples_every=recipe.output.samples_every,
            threaded=not recipe.world_traits.virtual_time,
            restored=None if restored is None else restored.recorder,
        ) as recorder:
            if before is not None and restored is None:
                recorder.evaluated(before)
            board = None
            evaluations = Evaluations()
            if recipe.eval.every:
                board = Scoreboard(context.directory, recipe, context.version, recorder, context.display.note)
                evaluations = parts.make_evaluations(board)
            snapshot = RunSnapshot(recipe, context.plan.sha256(recipe.train.steps), before, recorder)
            checkpoints = parts.make_checkpoints(snapshot, evaluations)
            controller = Controller(
                parts,
                self.until,
                SteppedObserver(recorder, lambda step: evaluations.stepped(step, controller.has_ended())),
                checkpoints,
                restored=None if restored is None else restored.controller,
            )
            recorder.watch(functools.partial(self._read_meters, controller))
            self.status.watch_training(controller, recorder)
            async with asyncio.TaskGroup() as tasks:
                evaluating = tasks.create_task(evaluations.run(), name="evaluations")
                seconds = await self._train(controller, recorder)
                after = await self._evaluate_after(controller, recorder, board)
                if controller.is_stopping:
                    evaluating.cancel()  # a resumed run evaluates what is left out
                else:
                    evaluations.finish()
            await checkpoints.prune()
        return Outcome(before=before, after=after, training_seconds=seconds, recorder=recorder, controller=controller)

    def _read_meters(self, controller: Controller) -> Meters:
        """Read what the run has counted."""
        parts = self.parts
        return Meters(
            busy_seconds=parts.engine.busy_seconds,
            gate_seconds=parts.gate_meter.seconds,
            restarts=parts.num_restarts(),
            reward_wait_seconds=parts.groups.reward_wait_seconds,
            graded_groups=parts.groups.num_graded_groups,
            admitted=controller.ledger.admitted,
            restarted_tokens=controller.ledger.restarted_tokens,
            epochs=parts.problems.position / len(self.context.plan.training),
            open_tokens=controller.open_tokens,
        )

    async def _train(self, controller: Controller, recorder: Recorder) -> float:
        """Train until the end of the segment, or of the data; return the seconds that this took.

        The first signal stops the controller; in virtual time it ends everything at once.

        Raises:
            RunError: a recording had not enough groups for one step.
            RunStopped: the user has stopped the run, and it could not be saved in time.
        """
        context = self.context
        note = context.display.note
        context.display.begin("replaying" if self.parts.is_recorded else "training", context.recipe.train.steps)
        if context.recipe.world_traits.virtual_time:
            await controller.run()
        else:
            seconds = context.recipe.deadlines.stop
            async with stopped_by_signals(
                controller.stop, note, seconds, late=lambda: not_saved(context.directory, controller.version, seconds)
            ):
                await controller.run()
        if num_diverged := self.parts.num_diverged():
            note(f"{num_diverged} resumed episodes went another way than was recorded")
        if controller.version == self.until or controller.has_ended() or controller.is_stopping:
            return recorder.seconds
        assert self.parts.is_recorded, f"ended at version {controller.version} of {self.until}"
        if controller.version == 0:
            raise RunError(
                f"not one step can be trained under these settings; lost: {dict(controller.ledger.lost)}. "
                "Replay with a bound and rules that are nearer to the recorded ones"
            )
        await controller.save()
        note(f"the recording had no batch left after {controller.version} of {self.until} steps")
        return number(recorder.records.newest[-1], "time_s")

    async def _evaluate_after(
        self, controller: Controller, recorder: Recorder, board: Scoreboard | None
    ) -> Accuracy | None:
        """Evaluate the last version and record it; it may be the best as well."""
        if not self.is_last or controller.is_stopping:
            return None
        self.status.stage = "evaluation after training"
        after = await self._evaluate(controller.version, "after training")
        if after is None:
            return None
        is_all = self.context.recipe.eval.only_held_out
        if board is not None and is_all and not board.measured(after.version):
            board.add(self.context.directory / CHECKPOINTS / f"step_{after.version}", [after])
        else:
            recorder.evaluated(after)
        return after


# ---- summary


def _summarize(context: RunContext, outcome: Outcome, seconds: float) -> Summary:
    """Summarize a run on one page, and write it to its summary.json.

    Args:
        seconds: of the whole command, on the run's clock.
    """
    before = outcome.before
    after = outcome.after
    recorder = outcome.recorder
    ledger = outcome.controller.ledger
    steps = [record for record in recorder.read_records() if "tokens/trained" in record]
    summary = Summary(
        directory=str(context.directory),
        accuracy_before=before.mean_reward if before else None,
        accuracy_after=after.mean_reward if after else None,
        eval_problems=after.problems if after else 0,
        seconds=seconds,
        training_seconds=outcome.training_seconds,
        steps=len(steps),
        tokens_trained=int(sum(number(record, "tokens/trained") for record in steps)),
        tokens_generated=int(sum(number(record, "tokens/generated") for record in steps)),
        token_ages=dict(sorted(recorder.state.token_ages.items())),
        trajectories_spanning_versions=recorder.state.num_spanning,
        groups={"trained": ledger.trained, **ledger.lost, "in flight": ledger.in_flight},
        selection=recorder.state.selection,
        selection_bias=recorder.state.selection.warnings(),
        idle_trainer=mean_idle(steps, "trainer"),
        idle_engine=mean_idle(steps, "engine"),
        weights_sha256=weights_sha256(context.directory / CHECKPOINTS / f"step_{outcome.controller.version}"),
        trainer_memory=_trainer_memory(context, steps),
    )
    file = context.directory / SUMMARY
    with writing(file):  # last, because a run that has it is finished
        replace_file(file, msgspec.json.format(msgspec.json.encode(summary)))
    return summary


def _trainer_memory(context: RunContext, steps: list[Record]) -> TrainerMemory | None:
    """Return the most that a rank took, and on GPUs what was predicted: both count what torch allocates there."""
    measured = [number(record, MEMORY) for record in steps if MEMORY in record]
    plan = context.plan
    if context.recipe.world_traits.one_process or not measured:
        return None
    predicted = plan.memory.rank_peak / 1e9 if plan.memory is not None and plan.placement.on_gpus else None
    return TrainerMemory(max(measured), predicted)
