"""Define the world seam: open everything that a segment of a run is made of.

    recipe.world ─► make_world ─► World.open(start) ─► Parts ─► arl.run.train: Recorder, Controller, evaluations

Four worlds differ in their parts, and one assembly runs them all:

    world    file                        clock     engine               trainer           data
    wall     arl/run/wall.py             measured  server processes     rank processes    generated
    virtual  arl/run/virtual.py          counted   in this process      in this process   generated
    replay   arl/run/replay/             counted   a recording          in this process   recorded
    null     arl/bench/null.py           measured  answers at once      learns nothing    generated, meaningless
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from arl.config.imports import import_attribute, import_function
from arl.config.recipe import Deadlines, Recipe, Rollout
from arl.config.worlds import WorldName, WorldTraits
from arl.data.problems import ProblemOrder
from arl.data.text_codec import TextCodec
from arl.engine.base import Engine
from arl.metrics.console import ConsoleDisplay
from arl.metrics.recorder import Display
from arl.metrics.run_status import ProcessStatus
from arl.rollout.base import (
    Admission,
    Checkpoints,
    Drain,
    DrainedDeviceLease,
    Groups,
    Lease,
    NoLease,
    SharedDeviceLease,
)
from arl.rollout.episodes import Episodes, Rewards
from arl.rollout.exact_lag import LagSchedule
from arl.rollout.filters import Filter, keep_all
from arl.rollout.ledger import GateMeter
from arl.rollout.problem_queue import TailGate, TailRounds
from arl.rollout.staleness import StalenessGate
from arl.run.checkpoint import RunCheckpoints
from arl.run.checkpoint import RunSnapshot as RunSnapshot
from arl.run.evaluation.during import Evaluations
from arl.run.evaluation.evaluate import measure_suite
from arl.run.evaluation.scoreboard import CHECKPOINTS, Scoreboard
from arl.run.evaluation.suite import held_out_suite
from arl.run.preflight import Plan
from arl.run.resume import Origin
from arl.tasks.registry import env_name
from arl.train.base import Trainer
from arl.types import Accuracy, Problem, StartingVersions

WORLDS: dict[WorldName, str] = {
    "wall": "arl.run.wall:WallWorld",
    "virtual": "arl.run.virtual:VirtualWorld",
}


@dataclass(frozen=True, kw_only=True)
class Start:
    """Say what a segment of a run begins with, in any world."""

    recipe: Recipe
    origin: Origin
    model: Path  # weights of the origin's version
    display: ConsoleDisplay

    @property
    def versions(self) -> StartingVersions:
        """Return the versions that trainer and engines begin with."""
        return self.origin.versions(self.model)


class MeteredGroups(Groups, Protocol):
    """Extend Groups by what they count since the world was opened."""

    gate_meter: GateMeter
    """Counts their open requests."""
    drain: Drain
    """Holds their episodes back, where sync.interrupt is false."""
    reward_wait_seconds: float
    """Clock seconds from the end of a group's last episode to its grades, summed over groups."""
    num_graded_groups: int
    """Groups in that sum."""


def _zero() -> int:
    return 0


def _no_processes() -> Sequence[ProcessStatus]:
    return ()


async def _at_once() -> None:
    pass


def _no_evaluations(board: Scoreboard) -> Evaluations:
    return Evaluations()


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Hold an opened world. `recipe_parts` makes those that follow from the recipe."""

    engine: Engine
    trainer: Trainer
    groups: MeteredGroups
    """Runs the episodes of a problem; where training data comes from."""
    problems: ProblemOrder
    admission: Admission
    keep: Filter
    lease: Lease
    rollout: Rollout
    """The recipe's rules, or those of this world."""
    deadlines: Deadlines
    steps: int
    """Versions of the whole run. Nothing is generated that no step will train."""
    display: Display
    """Shows steps and lost groups."""
    make_checkpoints: Callable[[RunSnapshot, Evaluations], Checkpoints]
    evaluate: Callable[[Sequence[Problem], int], Awaitable[Accuracy]]
    """Measures the accuracy of a version, which the engine serves, on held-out problems."""
    make_evaluations: Callable[[Scoreboard], Evaluations] = _no_evaluations
    """Makes what evaluates while training goes on; only called with eval.every."""
    ready: Callable[[], Awaitable[None]] = _at_once
    """Returns when training can begin. Evaluation can begin as soon as the world is open."""
    codec: TextCodec | None = None
    """Turns tokens into the text that the run's files hold; None: they hold none."""
    num_restarts: Callable[[], int] = _zero
    """Counts the engines that were restarted since the world was opened."""
    processes: Callable[[], Sequence[ProcessStatus]] = _no_processes
    """Lists the processes that run beside this one. It is called about once a second, for status.json."""
    num_diverged: Callable[[], int] = _zero
    """Counts the resumed episodes whose env did not repeat what was recorded."""
    data_may_end: bool = False
    """Training may end early, because the source of the groups may be exhausted."""
    activity: str = "training"
    """Names the stage on the progress bar."""


class World(Protocol):
    """Open what runs need."""

    traits: WorldTraits

    def process_settings(self) -> AbstractContextManager[None]:
        """Enter settings of this process, such as its number of threads, that the whole run needs."""

    def known_accuracy(self, start: Start) -> Accuracy | None:
        """Return the accuracy of a new run's first version if it is known; None: the run measures it.

        Called before the clock starts.
        """

    def open(self, start: Start) -> AbstractAsyncContextManager[Parts]:
        """Open everything that one segment needs, on the running clock, and close it afterwards."""


def make_world(name: WorldName) -> World:
    """Make the world that recipe field `world` names."""
    world: World = import_attribute(WORLDS[name], "world")()  # by its name, because the worlds import this module
    return world


def recipe_parts(
    start: Start,
    *,
    engine: Engine,
    trainer: Trainer,
    codec: TextCodec,
    rewards: Rewards,
    held_out_rewards: Rewards | None = None,
    **others: Any,
) -> Parts:
    """Make the parts that follow from the recipe.

    Args:
        rewards: of training episodes.
        held_out_rewards: of an evaluation's episodes; None: the same.
        others: further fields of Parts, which win.
    """
    recipe = start.recipe
    plan = start.origin.plan
    episodes = _training_episodes(recipe, plan, engine, codec, rewards)
    graded = held_out_rewards or rewards

    async def measure(problems: Sequence[Problem], version: int) -> Accuracy:
        suite = held_out_suite(recipe, problems)
        return await measure_suite(suite, version, engine, codec, graded, plan.context, recipe.deadlines.step)

    def checkpoints(snapshot: RunSnapshot, evaluations: Evaluations) -> RunCheckpoints:
        directory = start.origin.directory / CHECKPOINTS
        directory.mkdir(exist_ok=True)
        return RunCheckpoints(directory, recipe, engine, trainer, snapshot, start.origin.checkpoint, evaluations)

    parts: dict[str, Any] = {
        "groups": episodes,
        "problems": ProblemOrder(plan.training, recipe.seed),
        "admission": _admission(start),
        "keep": recipe_filter(recipe),
        "lease": recipe_lease(recipe, engine, episodes.drain),
        "rollout": recipe.rollout,
        "deadlines": recipe.deadlines,
        "steps": recipe.train.steps,
        "display": start.display,
        "codec": codec,
        "make_checkpoints": checkpoints,
        "evaluate": measure,
        "num_diverged": lambda: episodes.num_diverged,
    }
    return Parts(engine=engine, trainer=trainer, **(parts | others))


def _training_episodes(recipe: Recipe, plan: Plan, engine: Engine, codec: TextCodec, rewards: Rewards) -> Episodes:
    return Episodes(
        engine,
        codec,
        rewards,
        env=import_function(env_name(recipe), "rollout.env"),
        rollout=recipe.rollout,
        seed=recipe.seed,
        max_length=plan.max_length,
        shaping=recipe.reward,
    )


def _admission(start: Start) -> Admission:
    if start.origin.plan.lags is not None:
        return LagSchedule(start.origin.plan.lags)
    rollout = start.recipe.rollout
    if rollout.tail_batching is not None:
        return TailGate(TailRounds(rollout.problems_per_step, rollout.tail_batching.oversample))
    return StalenessGate(rollout.problems_per_step, rollout.max_age)


def recipe_filter(recipe: Recipe) -> Filter:
    """Return the recipe's filter of finished groups."""
    if recipe.rollout.filter is None:
        return keep_all
    return import_function(recipe.rollout.filter, "rollout.filter")


def recipe_lease(recipe: Recipe, engine: Engine, drain: Drain) -> Lease:
    """Return the lease of the devices: in mode collocated engines and trainer take turns."""
    if recipe.mode != "collocated":
        return NoLease()
    if recipe.sync.interrupt:
        return SharedDeviceLease(engine)
    return DrainedDeviceLease(engine, drain, recipe.deadlines.step)
