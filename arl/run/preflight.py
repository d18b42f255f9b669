"""Check a recipe and plan its run before anything is started or written."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from arl.config.imports import import_seam
from arl.config.recipe import Recipe
from arl.data.hub import check_model_source
from arl.data.model_limits import Limits
from arl.data.prompt_format import recipe_format
from arl.data.tokenizer import HuggingFaceCodec
from arl.engine.backend import find_backend, probe_backend
from arl.errors import DataError, InputError
from arl.files import refuse_unwritable
from arl.launch.base import Node, make_launcher
from arl.launch.devices import Gpu
from arl.launch.placement import Placement, engine_share, place
from arl.launch.torch_build import nccl_settings
from arl.metrics.run_files import LOGS
from arl.metrics.trackers import check_trackers
from arl.rollout.filters import Filter
from arl.rollout.lag_table import load_lags
from arl.run.auto import resolve_auto
from arl.run.checks import GpuReport, check_gpus
from arl.run.evaluation.suite import Suite, held_out_suite, measured_suites
from arl.run.evaluation.suite_prompts import check_prompts
from arl.run.memory_budget import MemoryPlan
from arl.run.problem_sets import run_problems, run_suites
from arl.run.prompt_lengths import check_lengths
from arl.run.rewards import reward_name
from arl.run.starting_model import starting_codec, starting_limits, warmup_stages
from arl.sync.choose import choose_transport, kept_versions
from arl.tasks.base import EnvFunction, RewardFunction
from arl.tasks.registry import env_name, task_class
from arl.train.algorithms.trial import try_algorithms
from arl.types import Problem, Transport

EXAMPLE_CHARACTERS = 120  # of a prompt, in the plan


class Plan(Struct, frozen=True):
    """Hold what preflight decided and measured."""

    training: list[Problem]
    held_out: list[Problem]
    longest: int  # trajectory that is known before the start, tokens
    max_length: int  # of any trajectory, with what an env adds, tokens
    context: int  # of the model, tokens
    placement: Placement
    transport: Transport
    memory: MemoryPlan | None  # None: a tiny model's
    lags: np.ndarray | None  # (steps, P) int32, versions: see arl.rollout.lag_table; None: staleness is bounded instead
    suites: dict[str, list[Problem]] = {}  # name of a suite -> its problems
    measured: list[Suite] = []  # during training
    left_out: tuple[str, ...] = ()  # notes about problems that are not used
    prompts: str = ""  # how problems become prompts, with the beginning of one
    gpus: tuple[Gpu, ...] = ()  # of the run, as far as the driver knows them
    notes: tuple[str, ...] = ()  # about where the model is, and about the GPUs
    nodes: tuple[Node, ...] = ()  # of the launcher, the controller's first

    def sha256(self, steps: int) -> str:
        """Hash what files and tasks gave: the problems of all sets, and the lags of the first `steps` steps."""
        digest = hashlib.sha256(msgspec.msgpack.encode((self.training, self.held_out)))
        if self.suites:
            digest.update(msgspec.msgpack.encode(self.suites))
        if self.lags is not None:
            digest.update(self.lags[:steps].tobytes())
        return digest.hexdigest()


class Site(Struct, frozen=True):
    """Hold where a run is placed.

    Args:
        nodes: of the launcher, the controller's first.
        shares_files: processes on all nodes see the run's directory.
        is_here: the nodes exist; otherwise the run is only planned for them.
    """

    nodes: tuple[Node, ...]
    shares_files: bool
    is_here: bool

    @classmethod
    def of(cls, recipe: Recipe, named: Sequence[Node] | None) -> "Site":
        """Take the launcher's nodes, or those that are planned for."""
        if named is not None:
            return cls(tuple(named), shares_files=True, is_here=False)
        launcher = make_launcher(recipe, recipe.run_directory / LOGS)
        return cls(tuple(launcher.nodes), launcher.shares_files, is_here=True)

    def place(self, recipe: Recipe) -> tuple[Placement, Transport]:
        """Divide the nodes between the processes, and choose how weights travel.

        Raises:
            InputError: devices are missing, or no transport serves.
        """
        placement = place(recipe, self.nodes)
        if placement.spans_nodes and not self.shares_files:
            raise InputError(
                f"launcher {recipe.launcher}: its nodes have no file system in common (shares_files), and a run keeps "
                "checkpoints and the weights that it begins with in files; give output.directory a path that all nodes "
                "share, or use one node"
            )
        transport = choose_transport(
            recipe,
            backend_transports=set(recipe.engine.capabilities.transports),
            one_process=recipe.world_traits.one_process,
            on_gpus=placement.on_gpus,
            shares_files=self.shares_files,
            shares_memory=not placement.spans_nodes,
        )
        return placement, transport


def preflight(recipe: Recipe, named: Sequence[Node] | None = None) -> Plan:
    """Check everything that is known to fail, and plan the run. Nothing is started or written.

    Args:
        named: plan for these machines, which are not there, so what is installed on them is not checked. None: for
            the launcher's.

    Raises:
        InputError: an object that the recipe names lacks a part, output.directory cannot be written, problems or lags
            cannot be read, devices are missing, the model is of an unsupported family or larger than memory, or the
            backend is not installed.
    """
    _check_named_objects(recipe)
    if named is None:
        refuse_unwritable(Path(recipe.output.directory))
    recipe = resolve_auto(recipe, named)
    source = None if recipe.model.path is None else check_model_source(recipe.model.path)
    try_algorithms(recipe)
    check_trackers(recipe)
    nccl_settings(recipe)
    lags = load_lags(recipe)
    codec = starting_codec(recipe)
    limits = starting_limits(recipe, codec)
    suites = run_suites(recipe)
    problems = run_problems(recipe, suites, codec)
    longest = check_lengths(recipe, problems.training + problems.held_out, codec, limits)
    held_out = _held_out(recipe, problems.held_out)
    measured = measured_suites(recipe, held_out, suites)
    _check_evaluations(recipe, held_out, measured, codec, limits)
    site = Site.of(recipe, named)
    placement, transport = site.place(recipe)
    memory = _plan_memory(recipe, site, placement, transport, longest, kept_versions(recipe, lags))
    report = _check_installation(recipe, site, placement, transport)
    if recipe.mode == "collocated":
        placement = _share_memory(placement, report.gpus, 0 if memory is None else memory.rank_resident)
    return Plan(
        training=problems.training,
        held_out=list(held_out.problems),
        longest=longest,
        max_length=min(recipe.train.capacity, limits.context),
        context=limits.context,
        placement=placement,
        transport=transport,
        memory=memory,
        lags=lags,
        suites={name: list(suite.problems) for name, suite in suites.items()},
        measured=measured,
        left_out=problems.notes,
        prompts=_describe_prompts(codec, problems.training[0]),
        gpus=report.gpus,
        notes=(*_notes(recipe, problems.training, source), *report.notes),
        nodes=site.nodes,
    )


def _notes(recipe: Recipe, training: Sequence[Problem], source: str | None) -> Iterator[str]:
    if source is not None:
        yield source
    per_step = recipe.rollout.problems_per_step
    if per_step > len(training):
        yield (
            f"rollout.problems_per_step {per_step}: there are {len(training)} training problems, so a step trains some "
            "of them more than once; give at most as many"
        )


def _held_out(recipe: Recipe, problems: list[Problem]) -> Suite:
    """Make a suite of the recipe's own evaluation problems, as many as are used.

    Raises:
        DataError: the recipe evaluates, and there are none.
    """
    if recipe.eval.problems and not problems:
        raise DataError(
            f"eval.problems {recipe.eval.problems}: no problem is held out; hold out more (data.eval_fraction, or the "
            "task's options), or set eval.problems to 0"
        )
    return held_out_suite(recipe, problems).shortened()


def _check_evaluations(
    recipe: Recipe,
    held_out: Suite,
    measured: Sequence[Suite],
    codec: HuggingFaceCodec,
    limits: Limits,
) -> None:
    """Check the prompts of every suite that is evaluated with a format or a token budget of its own.

    Raises:
        InputError: see `check_prompts`.
    """
    suites = {suite.name: suite for suite in measured}
    if recipe.eval.max_new_tokens is not None and held_out.problems:
        suites[held_out.name] = held_out
    for suite in suites.values():
        check_prompts(suite, codec.with_format(recipe_format(suite.recipe.data)), limits)


def _check_installation(recipe: Recipe, site: Site, placement: Placement, transport: Transport) -> GpuReport:
    """Check the backend and the GPUs that are here; of a machine that is not, nothing but the model.

    Raises:
        InputError: the backend is not installed or refuses the model, or the GPUs cannot be used.
    """
    if site.is_here:
        return check_gpus(recipe, placement, transport, probe_backend(recipe))
    if recipe.model.path is not None:
        find_backend(recipe.engine.kind).refuse_model(recipe.model.path, recipe)
    return GpuReport()


def _share_memory(placement: Placement, gpus: Sequence[Gpu], rank_bytes: int) -> Placement:
    """Leave the trainer's memory out of what an engine on the same GPUs may take, if their memory is known.

    Args:
        gpus: of the run.
        rank_bytes: that one rank holds while engines generate.
    """
    known = [gpu.total_bytes for gpu in gpus if gpu.total_bytes]
    if not known:
        return placement
    smallest = min(known)
    return placement.with_memory_share(engine_share(smallest, rank_bytes))


def _describe_prompts(codec: HuggingFaceCodec, problem: Problem) -> str:
    prompts = codec.prompts
    beginning = prompts.text(problem)[:EXAMPLE_CHARACTERS]
    return f"{prompts.describe()}; one begins {beginning!r}"


def _check_named_objects(recipe: Recipe) -> None:
    """Import what the recipe names, and compare it with its seam.

    Raises:
        RecipeError: it cannot be imported, lacks a part, or has another signature.
    """
    if recipe.data.task is not None:
        task_class(recipe.data.task)
    warmup_stages(recipe)
    import_seam(reward_name(recipe), "reward.function", RewardFunction, "arl/tasks/running_checksum.py")
    import_seam(env_name(recipe), "rollout.env", EnvFunction, "arl.rollout.env:single_turn")
    if recipe.rollout.filter is not None:
        import_seam(recipe.rollout.filter, "rollout.filter", Filter, "arl.rollout.filters:reward_varies")


def _plan_memory(
    recipe: Recipe, site: Site, placement: Placement, transport: Transport, longest: int, kept: int
) -> MemoryPlan | None:
    """Return the memory that a run with a model of `model.path` takes; None for a tiny one.

    Raises:
        InputError: the model is of an unsupported family, or the run does not fit.
    """
    if recipe.model.path is None:
        return None
    from arl.run.memory import plan_recipe  # and torch with every model class of transformers, seconds of them

    return plan_recipe(recipe, site.nodes, placement, transport, longest, kept, site.is_here)
