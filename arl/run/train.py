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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

from arl import clock
from arl.config.recipe import Recipe
from arl.errors import RunError
from arl.launch.base import make_launcher
from arl.metrics.console import ConsoleDisplay
from arl.metrics.names import number
from arl.metrics.recorder import Recorder
from arl.metrics.recorder_state import Meters
from arl.metrics.spans import recorded_spans, span
from arl.metrics.summary import Summary
from arl.metrics.trackers import make_trackers
from arl.rollout.base import Checkpoints, Observer, Segment
from arl.rollout.controller import Controller
from arl.rollout.controller_state import ControllerState
from arl.rollout.problem_queue import TailGate
from arl.run.checkpoint import next_checkpoint
from arl.run.checkpoint_state import RunState, load_state
from arl.run.clean_stop import failures_with_resume_command, not_saved, stopped, stopped_by_signals
from arl.run.evaluation.during import Evaluations, SteppedObserver
from arl.run.evaluation.scoreboard import CHECKPOINTS, Scoreboard
from arl.run.failures import explain_deaths, pauses_told, reported_failures
from arl.run.machines import fit_to_what_is_left, resolve_auto
from arl.run.outcome import Outcome, summarize
from arl.run.pinned_sources import pin_sources
from arl.run.resume import Origin, begin, run_to_resume
from arl.run.starting_model import starting_model
from arl.run.status_writer import StatusWriter, written_status
from arl.run.world import Parts, RunSnapshot, Start, World, make_world
from arl.types import Accuracy, Problem


def train(recipe: Recipe, display: ConsoleDisplay, resume: Path | None = None) -> Summary:
    """Run `recipe` to its end in the world that it names.

    Args:
        resume: the recipe's file, to go on from the last checkpoint of the newest run of that recipe.

    Raises:
        InputError: something is known to fail; nothing was started.
        RunError: the one failure that ended the run; none of its processes is left.
        RunStopped: Ctrl-C or SIGTERM has stopped it; the newest version is saved.
    """
    return train_in(make_world(recipe.world), recipe, display, resume)


def train_in(world: World, recipe: Recipe, display: ConsoleDisplay, resume: Path | None = None) -> Summary:
    """Run `recipe` in `world`; see `train`."""
    began = perf_counter()
    if resume is not None:
        recipe = fit_to_what_is_left(recipe, display.note)
    resumed = None if resume is None else run_to_resume(recipe, resume)
    recipe, notes = pin_sources(resolve_auto(recipe), resumed)
    for note in notes:
        display.note(note)
    with (
        world.process_settings(),
        begin(recipe, display, resume) as origin,
        failures_with_resume_command(origin.directory),
    ):
        outcome, end = _run_segments(world, recipe, origin, display, began)
        if outcome.is_stopped:
            raise stopped(origin.directory, outcome.version)
        summary = summarize(recipe, origin.directory, origin.plan, outcome, end - world.traits.start_time)
    if world.traits.virtual_time:
        display.note(f"computed in {perf_counter() - began:.1f} real seconds")
    return summary


def _run_segments(
    world: World, recipe: Recipe, origin: Origin, display: ConsoleDisplay, began: float
) -> tuple[Outcome, float]:
    """Run one segment after the other; return the last one's outcome, and the clock at its end."""
    model = origin.checkpoint or clock.run(lambda: _make_starting_model(recipe, origin, display))
    start = Start(recipe=recipe, origin=origin, model=model, display=display)
    if world.traits.restarts_at_checkpoints:
        while not start.origin.is_done(recipe.train):
            until = next_checkpoint(recipe, start.origin.version)
            outcome, _ = _run_on_clock(world, SegmentRun(start, until, is_last=False), began)
            start = _start_from_checkpoint(start, outcome.version)
    return _run_on_clock(world, SegmentRun(start, recipe.train.steps, is_last=True), began)


def _start_from_checkpoint(start: Start, version: int) -> Start:
    checkpoint = start.origin.directory / "checkpoints" / f"step_{version}"
    origin = replace(start.origin, checkpoint=checkpoint, state=load_state(checkpoint))
    return replace(start, origin=origin, model=checkpoint)


async def _make_starting_model(recipe: Recipe, origin: Origin, display: ConsoleDisplay) -> Path:
    """Make version 0, on the wall clock in every world, because a warm-up is a process."""
    directory = origin.directory
    with pauses_told(display.note):
        async with (
            reported_failures(),
            written_status(recipe, origin, display, "making the starting model"),
            make_launcher(recipe, directory / "logs") as launcher,
            explain_deaths(launcher),
        ):
            return await starting_model(recipe, directory, launcher, display)


def _run_on_clock(world: World, segment: "SegmentRun", began: float) -> tuple[Outcome, float]:
    """Run one segment on the world's clock; return its outcome, and the clock at its end.

    The clock goes on where the segment's checkpoint was cut. A wall clock also counts what this command has taken.
    """
    traits = world.traits
    start = segment.start
    opening = written_status(start.recipe, start.origin, start.display, "starting engines and trainer")
    known = None if start.origin.state is not None else world.known_accuracy(start)

    async def run() -> tuple[Outcome, float]:
        with recorded_spans(), pauses_told(start.display.note):
            async with (
                reported_failures(),
                opening as status,
                world.open(start) as parts,
            ):
                outcome = await segment.run(parts, known, status)
        return outcome, clock.now()

    taken = 0.0 if traits.virtual_time else perf_counter() - began
    return clock.run(
        run,
        virtual=traits.virtual_time,
        start=traits.start_time + start.origin.time + taken,
    )


@dataclass(frozen=True)
class SegmentRun:
    """Run one segment over an opened world: evaluate, train and record until version `until`, evaluate."""

    start: Start
    until: int
    is_last: bool  # the run is evaluated at its end

    async def run(self, parts: Parts, known_before: Accuracy | None, status: StatusWriter) -> Outcome:
        """Run it; `known_before` is the accuracy before training, if nobody has to measure it."""
        status.watch(parts)
        before = await self._evaluate_before(parts, known_before, status)
        status.stage = "waiting for the trainer to be ready"
        await parts.ready()
        outcome = await self._record(parts, before, status)
        status.end = f"stopped at version {outcome.version}" if outcome.is_stopped else "finished"
        return outcome

    async def _evaluate_before(self, parts: Parts, known: Accuracy | None, status: StatusWriter) -> Accuracy | None:
        state = self.start.origin.state
        if state is not None:
            return state.before
        if known is not None:
            return known
        status.stage = "evaluation before training"
        return await self._evaluate(parts, self.start.origin.version, "before training")

    async def _record(self, parts: Parts, before: Accuracy | None, status: StatusWriter) -> Outcome:
        recipe = self.start.recipe
        state = self.start.origin.state
        directory = self.start.origin.directory
        with Recorder(
            directory,
            recipe.output.trajectories,
            make_trackers(recipe, directory, self.start.display.note),
            parts.display,
            codec=parts.codec,
            samples_every=recipe.output.samples_every,
            threaded=not recipe.world_traits.virtual_time,
            restored=None if state is None else state.recorder,
        ) as recorder:
            if before is not None and state is None:
                recorder.evaluated(before)
            board = self._board(recorder)
            evaluations = Evaluations() if board is None else parts.make_evaluations(board)
            checkpoints = parts.make_checkpoints(self._snapshotter(recorder, before), evaluations)
            observer = SteppedObserver(recorder, lambda step: evaluations.stepped(step, controller.has_ended()))
            controller = Controller(make_segment(self.start, parts, self.until, observer, checkpoints))
            recorder.watch(functools.partial(read_meters, parts, controller, len(self.start.origin.plan.training)))
            status.watch_training(controller, recorder)
            async with asyncio.TaskGroup() as tasks:
                evaluating = tasks.create_task(evaluations.run(), name="evaluations")
                seconds = await self._train(parts, controller, recorder)
                status.stage = "evaluation after training"
                after = await self._evaluate_after(parts, controller)
                if after is not None:
                    self._record_after(after, recorder, board)
                if controller.is_stopping:
                    evaluating.cancel()  # a resumed run evaluates what is left out
                else:
                    evaluations.finish()
            await checkpoints.prune()
        return Outcome(
            before=before,
            after=after,
            version=controller.version,
            training_seconds=seconds,
            recorder=recorder,
            ledger=controller.ledger,
            is_stopped=controller.is_stopping,
        )

    def _board(self, recorder: Recorder) -> Scoreboard | None:
        """Open the scores of evaluations during training; None: the recipe has none."""
        recipe = self.start.recipe
        if not recipe.eval.every:
            return None
        origin = self.start.origin
        return Scoreboard(origin.directory, recipe.eval.decides, origin.version, recorder, self.start.display.note)

    def _record_after(self, after: Accuracy, recorder: Recorder, board: Scoreboard | None) -> None:
        """Record the evaluation after training, whose version may be the best as well."""
        is_all = self.start.recipe.eval.only_held_out
        if board is not None and is_all and not board.measured(after.version):
            board.add(self.start.origin.directory / CHECKPOINTS / f"step_{after.version}", [after])
        elif not recorder.has_evaluated(after):
            recorder.evaluated(after)

    async def _train(self, parts: Parts, controller: Controller, recorder: Recorder) -> float:
        """Train until the end of the segment, or of the data; return the seconds that this took."""
        display = self.start.display
        display.begin(parts.activity, self.start.recipe.train.steps)
        await self._run_until_stopped(controller)
        if num_diverged := parts.num_diverged():
            display.note(f"{num_diverged} resumed episodes went another way than was recorded")
        if controller.version == self.until or controller.has_ended() or controller.is_stopping:
            return recorder.seconds
        assert parts.data_may_end, f"ended at version {controller.version} of {self.until}"
        if controller.version == 0:
            raise RunError(
                f"not one step can be trained under these settings; lost: {dict(controller.ledger.lost)}. "
                "Replay with a bound and rules that are nearer to the recorded ones"
            )
        await controller.save()
        display.note(f"the recording had no batch left after {controller.version} of {self.until} steps")
        return number(recorder.records.newest[-1], "time_s")

    async def _run_until_stopped(self, controller: Controller) -> None:
        """Run the controller to its end, or until the user has stopped it.

        Raises:
            RunStopped: it could not be saved in time.
        """
        recipe = self.start.recipe
        if recipe.world_traits.virtual_time:
            await controller.run()
            return
        seconds = recipe.deadlines.stop
        directory = self.start.origin.directory
        async with stopped_by_signals(
            controller.stop,
            self.start.display.note,
            seconds,
            late=lambda: not_saved(directory, controller.version, seconds),
        ):
            await controller.run()

    def _snapshotter(self, recorder: Recorder, before: Accuracy | None) -> RunSnapshot:
        recipe = self.start.recipe
        inputs = self.start.origin.plan.sha256(recipe.train.steps)
        return _RecordedSnapshot(recipe, inputs, before, recorder)

    async def _evaluate_after(self, parts: Parts, controller: Controller) -> Accuracy | None:
        if not self.is_last or controller.is_stopping:
            return None
        return await self._evaluate(parts, controller.version, "after training")

    async def _evaluate(self, parts: Parts, version: int, when: str) -> Accuracy | None:
        problems: Sequence[Problem] = self.start.origin.plan.held_out
        if not problems:
            return None
        with span("evaluation", f"version {version} {when}"):
            accuracy = await parts.evaluate(problems, version)
        reward = f"{accuracy.mean_reward:.3f}"
        self.start.display.note(f"accuracy {when}: {reward} on {accuracy.problems} held-out problems")
        return accuracy


@dataclass(frozen=True)
class _RecordedSnapshot:
    """Implement RunSnapshot with the recorder of a segment."""

    recipe: Recipe
    inputs: str
    before: Accuracy | None
    recorder: Recorder

    def __call__(self, state: ControllerState) -> RunState:
        return RunState(
            recipe=self.recipe.model_dump(mode="json"),
            inputs=self.inputs,
            time=clock.now(),
            before=self.before,
            controller=state,
            recorder=self.recorder.snapshot(),
        )

    def settle(self) -> None:
        self.recorder.settle()


def read_meters(parts: Parts, controller: Controller, num_problems: int) -> Meters:
    """Read what the run has counted; `num_problems` are for training."""
    return Meters(
        busy_seconds=parts.engine.busy_seconds,
        gate_seconds=parts.groups.gate_meter.seconds,
        restarts=parts.num_restarts(),
        reward_wait_seconds=parts.groups.reward_wait_seconds,
        graded_groups=parts.groups.num_graded_groups,
        admitted=controller.ledger.admitted,
        restarted_tokens=controller.ledger.restarted_tokens,
        epochs=parts.problems.position / num_problems,
        open_tokens=controller.open_tokens,
        loaded_version=parts.engine.loaded_version,
    )


def make_segment(start: Start, parts: Parts, until: int, observer: Observer, checkpoints: Checkpoints) -> Segment:
    """Assemble what the controller runs: every run, replay and benchmark of it goes through here."""
    state = start.origin.state
    return Segment(
        rollout=parts.rollout,
        deadlines=parts.deadlines,
        steps=parts.steps,
        tokens=start.recipe.train.tokens,
        until=until,
        engine=parts.engine,
        trainer=parts.trainer,
        admission=parts.admission,
        problems=parts.problems,
        groups=parts.groups,
        gate_meter=parts.groups.gate_meter,
        tail=parts.admission.rounds if isinstance(parts.admission, TailGate) else None,
        drain=None if start.recipe.sync.interrupt else parts.groups.drain,
        keep=parts.keep,
        lease=parts.lease,
        observer=observer,
        checkpoints=checkpoints,
        restored=None if state is None else state.controller,
    )
