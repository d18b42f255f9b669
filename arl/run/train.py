"""Run one recipe, from its start or a checkpoint to its end, in whatever world it names.

    recipe ─► make_world ─► begin ─► starting model ─► segment ─► … ─► segment ─► summary
                              │      (warm-up, cached)
                              └ everything that can be refused is refused here, before anything starts

    a segment, on the world's clock:

    World.open ─► evaluate ─► Recorder ◄─ events ─ Controller: problems ─► episodes ─► batches ─► steps ─► weights
                                  │                    └─► checkpoints
                                  └─► metrics, trajectories, trace                 ─► evaluate ─► Summary

A run on the wall clock is one segment. In virtual time each checkpoint ends a segment, and the next one is built from
the checkpoint's files, as a resumed run is, so that the two cannot differ.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
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
from arl.metrics.names import number
from arl.metrics.recorder import Meters, Recorder
from arl.metrics.run_files import BASE_MODEL, LOGS, SUMMARY
from arl.metrics.spans import recorded_spans, span
from arl.metrics.summary import Summary, mean_idle, weights_sha256
from arl.metrics.trackers import make_trackers
from arl.rollout.controller import Controller
from arl.run.checkpoint import RunCheckpoints, load_state, next_checkpoint
from arl.run.evaluation.during import Evaluations
from arl.run.evaluation.scoreboard import CHECKPOINTS, Scoreboard
from arl.run.failures import describe_pause, explain_deaths, reported_failures, resumable, stopped, stopped_by_signals
from arl.run.machines import fit_to_what_is_left, resolve_auto
from arl.run.resume import begin, pin_sources, run_to_resume
from arl.run.starting_model import starting_model
from arl.run.status_writer import StatusWriter, written_status
from arl.run.world import Parts, RunContext, World, make_world
from arl.types import Accuracy

T = TypeVar("T")
Work = Callable[[StatusWriter], Awaitable[T]]


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
        resumable(begun.directory),
    ):
        context = begun
        if begun.state is None:
            context = replace(context, model=_make_starting_model(context))
        while world.traits.restarts_at_checkpoints and not context.is_done:
            segment = SegmentRun(world, context, next_checkpoint(recipe, context.version), is_last=False)
            segment.run(began)
            checkpoint = context.directory / CHECKPOINTS / f"step_{segment.controller.version}"
            context = replace(context, model=checkpoint, state=load_state(checkpoint))
        segment = SegmentRun(world, context, recipe.train.steps, is_last=True)
        segment.run(began)
        if segment.controller.is_stopping:
            raise stopped(context.directory, segment.controller.version)
        return _summarize(segment)


def _make_starting_model(context: RunContext) -> Path:
    """Make version 0, on the wall clock in every world, because a warm-up is a process."""

    async def make(status: StatusWriter) -> Path:
        async with make_launcher(context.recipe, context.directory / LOGS) as launcher, explain_deaths(launcher):
            return await starting_model(context.recipe, context.directory, launcher, context.display)

    model = _on_clock(context, "making the starting model", make)
    if context.recipe.objective.reference is not None or context.recipe.train.lora is not None:
        (context.directory / BASE_MODEL).symlink_to(model.absolute())  # a resumed run reads it, too
    return model


def _on_clock(context: RunContext, stage: str, work: Work[T], is_virtual: bool = False, start: float = 0.0) -> T:
    """Run `work` on a clock that begins at `start`, with status.json written and one failure reported."""

    async def main() -> T:
        async with reported_failures(), written_status(context, stage) as status:
            return await work(status)

    note = context.display.note
    return clock.run(main, is_virtual, start, on_pause=lambda seconds: note(describe_pause(seconds)))


# ---- a segment


@dataclass
class SegmentRun:
    """Run one segment on the world's clock, and hold what is left of it when its world is closed."""

    world: World
    context: RunContext
    until: int  # the version that ends it
    is_last: bool  # the run is evaluated at its end
    before: Sequence[Accuracy] = ()  # see Parts.evaluate
    after: Sequence[Accuracy] = ()
    training_seconds: float = 0.0  # of the clock, from the first admission to the last swap
    end: float = 0.0  # of the clock
    recorder: Recorder = field(init=False)
    controller: Controller = field(init=False)

    def run(self, began: float) -> None:
        """Evaluate, train and record until version `until`, evaluate.

        The clock goes on where the segment's checkpoint was taken. A wall clock also counts what this command, which
        `began` then, has taken.
        """
        context = self.context
        traits = self.world.traits
        start = traits.start_time
        if not traits.virtual_time:
            start += perf_counter() - began
        if context.state is None:
            self.before = self.world.known_accuracy(context)  # before the clock starts
        else:
            self.before = context.state.before
            start += context.state.time
        _on_clock(context, "starting engines and trainer", self._run, traits.virtual_time, start)

    async def _run(self, status: StatusWriter) -> None:
        context = self.context
        with recorded_spans():
            async with self.world.open(context) as parts:
                status.parts = parts
                if not self.before and context.state is None:
                    status.stage = "evaluation before training"
                    self.before = await self._evaluate(parts, context.version, "before training")
                status.stage = "waiting for the trainer to be ready"
                await parts.ready()
                await self._train_and_record(parts, status)
                is_stopped = self.controller.is_stopping
                status.end = f"stopped at version {self.controller.version}" if is_stopped else "finished"
        self.end = clock.now()

    async def _evaluate(self, parts: Parts, version: int, when: str) -> Sequence[Accuracy]:
        problems = self.context.plan.held_out
        if not problems:
            return ()
        with span("evaluation", f"version {version} {when}"):
            accuracies = await parts.evaluate(problems, version)
        overall, *of_sources = accuracies
        text = f"{overall.mean_reward:.3f} on {overall.problems} held-out problems"
        text += "".join(f", {each.mean_reward:.3f} on {each.suite}" for each in of_sources)
        self.context.display.note(f"accuracy {when}: {text}")
        return accuracies

    async def _train_and_record(self, parts: Parts, status: StatusWriter) -> None:
        context = self.context
        recipe = context.recipe
        restored = context.state
        recorded = None if restored is None else restored.recorder
        if restored is not None and not recipe.world_traits.virtual_time:  # there a restart is part of the schedule
            recorded = restored.recorder.after_pause(clock.now() - restored.time)
        with Recorder(
            context.directory,
            recipe.output.trajectories,
            make_trackers(recipe, context.directory, context.display.note),
            parts.display,
            codec=parts.codec,
            samples_every=recipe.output.samples_every,
            threaded=not recipe.world_traits.virtual_time,
            restored=recorded,
        ) as recorder:
            for accuracy in self.before if restored is None else ():
                recorder.evaluated(accuracy, recorder.seconds)
            board = None
            evaluations = Evaluations()
            if recipe.eval.every:
                board = Scoreboard(context.directory, recipe, context.version, recorder, context.display.note)
                evaluations = parts.make_evaluations(board)
            (context.directory / CHECKPOINTS).mkdir(exist_ok=True)
            checkpoints = parts.checkpoints or RunCheckpoints(
                directory=context.directory / CHECKPOINTS,
                recipe=recipe,
                engine=parts.engine,
                trainer=parts.trainer,
                recorder=recorder,
                inputs=context.plan.sha256(recipe.train.steps),
                before=self.before,
                in_use=None if context.state is None else context.model,
                evaluations=evaluations,
            )
            controller = Controller(
                parts,
                self.until,
                recorder,
                checkpoints,
                restored=None if restored is None else restored.controller,
            )
            self.recorder = recorder
            self.controller = controller
            recorder.watch(
                lambda: self._read_meters(parts), lambda version: evaluations.stepped(version, controller.has_ended())
            )
            status.watch_training(controller, recorder)
            async with asyncio.TaskGroup() as tasks:
                evaluating = tasks.create_task(evaluations.run(), name="evaluations")
                await self._train(parts)
                if self.is_last and not controller.is_stopping:
                    status.stage = "evaluation after training"
                    await self._evaluate_after(parts, board)
                if controller.is_stopping:
                    evaluating.cancel()  # a resumed run evaluates what is left out
                else:
                    evaluations.finish()
            await checkpoints.prune()

    def _read_meters(self, parts: Parts) -> Meters:
        """Read what the run has counted."""
        ledger = self.controller.ledger
        return Meters(
            busy_seconds=parts.engine.busy_seconds,
            gate_seconds=parts.gate_meter.seconds,
            restarts=parts.num_restarts(),
            reward_wait_seconds=parts.groups.meter.reward_wait_seconds,
            graded_groups=parts.groups.meter.num_graded,
            admitted=ledger.admitted,
            restarted_tokens=ledger.restarted_tokens,
            epochs=parts.problems.position / len(self.context.plan.training),
            of_order=parts.problems.metrics(),
            open_tokens=self.controller.open_tokens,
        )

    async def _train(self, parts: Parts) -> None:
        """Train until the end of the segment, or of the data.

        The first signal stops the controller; in virtual time it ends everything at once.

        Raises:
            RunError: a recording had not enough groups for one step.
            RunStopped: the user has stopped the run, and it could not be saved in time.
        """
        context = self.context
        note = context.display.note
        controller = self.controller
        context.display.begin("training", context.recipe.train.steps)
        if context.recipe.world_traits.virtual_time:
            await controller.run()
        else:
            async with stopped_by_signals(controller, context.directory, note, context.recipe.deadlines.stop):
                await controller.run()
        if num_diverged := parts.groups.meter.num_diverged:
            note(f"{num_diverged} resumed episodes went another way than was recorded")
        self.training_seconds = self.recorder.seconds
        if controller.version == self.until or controller.has_ended() or controller.is_stopping:
            return
        if controller.version == 0:
            raise RunError(
                f"not one step can be trained under these settings; lost: {dict(controller.ledger.lost)}. "
                "Replay with a bound and rules that are nearer to the recorded ones"
            )
        await controller.save()
        note(f"the recording had no batch left after {controller.version} of {self.until} steps")
        self.training_seconds = number(self.recorder.records.newest[-1], "time_s")

    async def _evaluate_after(self, parts: Parts, board: Scoreboard | None) -> None:
        """Evaluate the last version and record it; it may be the best as well."""
        version = self.controller.version
        self.after = await self._evaluate(parts, version, "after training")
        if not self.after:
            return
        is_all = self.context.recipe.eval.only_held_out
        if board is not None and is_all and not board.measured(version):
            board.add(self.context.directory / CHECKPOINTS / f"step_{version}", self.after)
        else:
            for accuracy in self.after:
                self.recorder.evaluated(accuracy, self.recorder.seconds)


# ---- summary


def _summarize(segment: SegmentRun) -> Summary:
    """Summarize a run on one page, and write it to its summary.json."""
    context = segment.context
    before = next(iter(segment.before), None)
    after = next(iter(segment.after), None)
    state = segment.recorder.state
    ledger = segment.controller.ledger
    steps = [record for record in segment.recorder.read_records() if "tokens/trained" in record]
    summary = Summary(
        directory=str(context.directory),
        accuracy_before=before.mean_reward if before else None,
        accuracy_after=after.mean_reward if after else None,
        eval_problems=after.problems if after else 0,
        seconds=segment.end - segment.world.traits.start_time,
        training_seconds=segment.training_seconds,
        steps=len(steps),
        tokens_trained=int(sum(number(record, "tokens/trained") for record in steps)),
        tokens_generated=int(sum(number(record, "tokens/generated") for record in steps)),
        token_ages=dict(sorted(state.token_ages.items())),
        trajectories_spanning_versions=state.num_spanning,
        groups={"trained": ledger.trained, **ledger.lost, "in flight": ledger.in_flight},
        selection=state.selection,
        selection_bias=state.selection.warnings(),
        idle_trainer=mean_idle(steps, "trainer"),
        idle_engine=mean_idle(steps, "engine"),
        weights_sha256=weights_sha256(context.directory / CHECKPOINTS / f"step_{segment.controller.version}"),
    )
    file = context.directory / SUMMARY
    with writing(file):  # last, because a run that has it is finished
        replace_file(file, msgspec.json.format(msgspec.json.encode(summary)))
    return summary
