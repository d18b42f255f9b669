"""Define the world seam: open everything that a segment of a run is made of.

    recipe.world ─► make_world ─► World.open(context) ─► Parts ─► arl.run.train: Recorder, Controller, evaluations

Four worlds differ in what they open, and one assembly runs them all:

    world    file                        clock     engine               trainer           data
    wall     arl/run/wall.py             measured  server processes     rank processes    generated
    virtual  arl/run/virtual.py          counted   in this process      in this process   generated
    replay   arl/run/replay/             counted   a recording          in this process   recorded
    null     arl/bench/null.py           measured  answers at once      learns nothing    generated, meaningless
"""

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from arl.config.imports import import_attribute, import_function
from arl.config.recipe import Recipe, WorldName, WorldTraits
from arl.data.problem_order import ProblemOrder
from arl.data.text_codec import TextCodec
from arl.engine.base import Engine
from arl.errors import UserCodeError
from arl.metrics.console import ConsoleDisplay
from arl.metrics.recorder import Display
from arl.metrics.run_files import BASE_MODEL
from arl.metrics.run_status import ProcessStatus
from arl.rollout.base import Checkpoints, DeviceLease, Drain, Segment
from arl.rollout.env_watch import EnvWatch
from arl.rollout.episodes import Episodes, Rewards, SourceGroups
from arl.rollout.exact_lag import LagSchedule
from arl.rollout.filters import Filter, keep_all
from arl.rollout.problem_queue import TailGate, TailRounds
from arl.rollout.staleness import Admission, StalenessGate
from arl.run.checkpoint import RunState, older_versions
from arl.run.evaluation.during import Evaluations
from arl.run.evaluation.evaluate import measure_suite
from arl.run.evaluation.scoreboard import Scoreboard
from arl.run.evaluation.scores import with_mean
from arl.run.evaluation.suite import held_out_suites
from arl.run.preflight import Plan
from arl.run.teachers import Teachers
from arl.tasks.registry import env_name
from arl.train.base import Trainer
from arl.types import Accuracy, Problem, StartingVersions, Trajectory

WORLDS: dict[WorldName, str] = {
    "wall": "arl.run.wall:WallWorld",
    "virtual": "arl.run.virtual:VirtualWorld",
}


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """Hold what a segment of a run begins with, in any world."""

    recipe: Recipe
    plan: Plan
    directory: Path
    display: ConsoleDisplay
    model: Path = Path()
    """Weights that the trainer begins with: the checkpoint's, or version 0, which is made when the run has begun."""
    state: RunState | None = None
    """What the checkpoint holds that the segment goes on from; None: the run is new."""

    @property
    def version(self) -> int:
        """Return the version that the trainer begins with."""
        return 0 if self.state is None else self.state.controller.version

    @property
    def versions(self) -> StartingVersions:
        """Return the versions that trainer and engines begin with, under paths that any process finds."""
        older = {} if self.state is None else older_versions(self.model.absolute(), self.state)
        return StartingVersions(
            str(self.model.absolute()), self.version, older, str(self.directory.absolute() / BASE_MODEL)
        )

    @property
    def is_done(self) -> bool:
        """Return whether nothing is left to train."""
        tokens = 0 if self.state is None else self.state.controller.tokens_trained
        return self.recipe.train.is_done(self.version, tokens)


async def _at_once() -> None:
    """Return without giving other tasks a turn, which would change the order of events."""


@dataclass(frozen=True, kw_only=True)
class Parts(Segment):
    """Hold an opened world: what the controller works with, and what the rest of a run needs.

    `recipe_parts` makes those that follow from the recipe.
    """

    codec: TextCodec
    """Turns tokens into the text that the run's files hold."""
    display: Display
    """Shows steps and lost groups."""
    evaluate: Callable[[Sequence[Problem], int], Awaitable[Sequence[Accuracy]]]
    """Measures a version, which the engine serves, on held-out problems: all of them, then those of each of several
    sources."""
    make_evaluations: Callable[[Scoreboard], Evaluations] = lambda board: Evaluations()
    """Makes what evaluates while training goes on; only called with eval.every."""
    ready: Callable[[], Awaitable[None]] = _at_once
    """Returns when training can begin. Evaluation can begin as soon as the world is open."""
    num_restarts: Callable[[], int] = int
    """Counts the engines that were restarted since the world was opened."""
    processes: Callable[[], Sequence[ProcessStatus]] = tuple
    """Lists the processes that run beside this one. It is called about once a second, for status.json."""
    checkpoints: Checkpoints | None = None
    """Writes checkpoints; None: whole ones are written, from which the run can be resumed."""


class World(Protocol):
    """Open what runs need."""

    traits: WorldTraits

    def process_settings(self) -> AbstractContextManager[None]:
        """Enter settings of this process, such as its number of threads, that the whole run needs."""
        return contextlib.nullcontext()

    def known_accuracy(self, context: RunContext) -> Sequence[Accuracy]:
        """Return the accuracy of a new run's first version as `Parts.evaluate` does, if it is known.

        Called before the clock starts.
        """
        del context
        return ()

    def open(self, context: RunContext) -> AbstractAsyncContextManager[Parts]:
        """Open everything that one segment needs, on the running clock, and close it afterwards."""


def make_world(name: WorldName) -> World:
    """Make the world that recipe field `world` names."""
    world: World = import_attribute(WORLDS[name], "world")()  # by its name, because the worlds import this module
    return world


def recipe_parts(
    context: RunContext,
    *,
    engine: Engine,
    trainer: Trainer,
    codec: Callable[[Recipe], TextCodec],
    rewards: Callable[[Recipe], Rewards],
    held_out_rewards: Callable[[Recipe], Rewards],
    teachers: Teachers | None = None,
) -> Parts:
    """Make the parts that follow from the recipe.

    Args:
        codec, rewards, held_out_rewards: make what a source needs, of the recipe as it is with that source alone. The
            last one scores the episodes of evaluations.
        teachers: that are engines.
    """
    recipe = context.recipe
    plan = context.plan
    codecs = {name: codec(source) for name, source in recipe.sources.items()}
    groups = _groups(context, engine, codecs, rewards, teachers or {})
    admission, tail = _admission(recipe, plan.lags)

    async def measure(problems: Sequence[Problem], version: int) -> Sequence[Accuracy]:
        accuracies = []
        for suite, prompts in zip(held_out_suites(recipe, problems), codecs.values(), strict=True):
            scorer = held_out_rewards(suite.recipe)
            accuracies.append(await measure_suite(suite, version, engine, prompts, scorer, plan.context))
        return with_mean(accuracies)

    return Parts(
        rollout=recipe.rollout,
        deadlines=recipe.deadlines,
        steps=recipe.train.steps,
        tokens=recipe.train.tokens,
        engine=engine,
        trainer=trainer,
        admission=admission,
        problems=ProblemOrder(plan.training, recipe.seed, recipe.weights, recipe.curricula),
        groups=groups,
        keep=recipe_filter(recipe),
        lease=recipe_lease(recipe, engine, groups.drain),
        gate_meter=groups.gate_meter,
        drain=None if recipe.sync.interrupt else groups.drain,
        tail=tail,
        codec=next(iter(codecs.values())),
        display=context.display,
        evaluate=measure,
    )


def _admission(recipe: Recipe, lags: np.ndarray | None) -> tuple[Admission, TailRounds | None]:
    """Return what decides when groups start, and the rounds of tail batching, if there are any."""
    rollout = recipe.rollout
    if lags is not None:
        return LagSchedule(lags), None
    if rollout.tail_batching is not None:
        tail = TailRounds(rollout.problems_per_step, rollout.tail_batching.oversample)
        return TailGate(tail), tail
    return StalenessGate(rollout.problems_per_step, rollout.max_age, recipe.sync.every), None


def _groups(
    context: RunContext,
    engine: Engine,
    codecs: Mapping[str, TextCodec],
    rewards: Callable[[Recipe], Rewards],
    teachers: Teachers,
) -> SourceGroups:
    """Return what opens and runs the episodes of each source."""
    recipe = context.recipe
    groups = SourceGroups()
    for name, source in recipe.sources.items():
        groups.sources[name] = Episodes(
            engine,
            codecs[name],
            rewards(source),
            env=import_function(env_name(source), "rollout.env"),
            watch=EnvWatch(env_name(source), recipe.deadlines.episode, context.display.note),
            rollout=recipe.rollout,
            seed=recipe.seed,
            max_length=context.plan.max_length,
            shaping=recipe.reward,
            teacher=teachers[name].score if name in teachers else None,
            meter=groups.meter,
            gate_meter=groups.gate_meter,
            drain=groups.drain,
        )
    return groups


def recipe_filter(recipe: Recipe) -> Filter:
    """Return the recipe's filter of finished groups."""
    if recipe.rollout.filter is None:
        return keep_all
    chosen: Filter = import_function(recipe.rollout.filter, "rollout.filter")

    def keep(problem: Problem, trajectories: Sequence[Trajectory]) -> bool:
        try:
            return chosen(problem, trajectories)
        except Exception as error:
            raise UserCodeError(f"rollout.filter {recipe.rollout.filter} on {problem.id}", error) from error

    return keep


def recipe_lease(recipe: Recipe, engine: Engine, drain: Drain) -> DeviceLease | None:
    """Return the lease of the devices: in mode collocated engines and trainer take turns."""
    if recipe.mode != "collocated":
        return None
    return DeviceLease(engine, None if recipe.sync.interrupt else drain, recipe.deadlines.step)
