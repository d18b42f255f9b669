"""Check a recipe and plan its run before anything is started or written."""

import hashlib
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from msgspec import Struct

from arl.config.imports import import_seam
from arl.config.objective_section import REFERENCE
from arl.config.recipe import Recipe
from arl.config.scoring_sections import HELD_OUT
from arl.data.hub import check_model_source
from arl.data.model_limits import Limits, model_limits
from arl.data.tokenizer import HuggingFaceCodec, refuse_other_vocabulary
from arl.engine.backend import find_backend, probe_backend
from arl.errors import InputError, RecipeError
from arl.files import refuse_unwritable
from arl.launch.base import Node, make_launcher
from arl.launch.placement import Placement, engine_share, place
from arl.launch.torch_build import nccl_settings
from arl.metrics.run_files import LOGS
from arl.metrics.trackers import check_trackers
from arl.rollout.exact_lag import load_lags
from arl.rollout.filters import Filter
from arl.rollout.tools import check_tools
from arl.run.checks import check_gpus, check_sandboxes
from arl.run.evaluation.suite import Suite, held_out_suites, load_suite, run_problems
from arl.run.machines import resolve_auto
from arl.run.processes import rare_collections
from arl.run.prompt_lengths import check_lengths
from arl.run.rewards import reward_name
from arl.run.starting_model import starting_codecs, starting_limits, warmup_cache, warmup_stages
from arl.sync.choose import choose_transport, kept_versions
from arl.tasks.base import EnvFunction, RewardFunction
from arl.tasks.registry import env_name, task_class
from arl.train.algorithms.trial import try_algorithms
from arl.types import Problem, Transport

if TYPE_CHECKING:
    from arl.run.memory import MemoryPlan


class Plan(Struct, frozen=True):
    """Hold what preflight decided and measured."""

    training: list[Problem]
    held_out: list[Problem]
    longest: int  # trajectory that is known before the start, tokens
    max_length: int  # of any trajectory, with what an env adds, tokens
    context: int  # of the model, tokens
    placement: Placement
    transport: Transport
    memory: "MemoryPlan | None"  # None: a tiny model's
    lags: np.ndarray | None  # (steps, P) int32, versions: see arl.rollout.exact_lag; None: staleness is bounded instead
    nodes: tuple[Node, ...] = ()  # of the launcher, the controller's first
    suites: dict[str, list[Problem]] = {}  # name of a suite -> its problems
    measured: list[Suite] = []  # during training
    prompts: tuple[str, ...] = ()  # how problems become prompts; one of them as text and as tokens
    notes: tuple[str, ...] = ()  # about problems that are not used, and where the model is

    def sha256(self, steps: int) -> str:
        """Hash what files and tasks gave: the problems of all sets, and the lags of the first `steps` steps."""
        digest = hashlib.sha256(msgspec.msgpack.encode((self.training, self.held_out)))
        if self.suites:
            digest.update(msgspec.msgpack.encode(self.suites))
        if self.lags is not None:
            digest.update(self.lags[:steps].tobytes())
        return digest.hexdigest()


@rare_collections()  # what a million rows become stays, and is not looked through again and again
def preflight(recipe: Recipe, named: Sequence[Node] | None = None) -> Plan:
    """Check everything that is known to fail, and plan the run. Nothing is started or written.

    Args:
        named: machines to plan for, which are not there, so nothing installed is checked; None: the launcher's.

    Raises:
        InputError: what the recipe names is not there, cannot be used, read or written, or is larger than memory.
    """
    _check_named_objects(recipe)
    if named is None:
        _check_directories(recipe)
    recipe = resolve_auto(recipe, named)
    notes: list[str | None] = [] if recipe.model.path is None else [check_model_source(recipe.model.path)]
    try_algorithms(recipe)
    check_trackers(recipe)
    nccl_settings(recipe)
    lags = load_lags(recipe)
    codecs = starting_codecs(recipe)
    codec = next(iter(codecs.values()))
    notes += _check_users_of_tokens(recipe, codecs)
    limits = starting_limits(recipe, codec)
    suites = {name: load_suite(recipe, name, field="eval.suites") for name in recipe.eval.suites if name != HELD_OUT}
    problems = run_problems(recipe, suites, codecs, limits)
    check_lengths(recipe, problems.longest, codec)
    _check_sizes_of_others(recipe, limits, problems.longest)
    held_out = [suite.shortened() for suite in held_out_suites(recipe, problems.held_out)]
    opened = {HELD_OUT: held_out} | {name: [suite] for name, suite in suites.items()}
    measured = [suite.shortened() for name in recipe.eval.suites if recipe.eval.every for suite in opened[name]]
    notes += _check_suites([*held_out, *measured], recipe, codec, limits)
    nodes, placement, transport = _place(recipe, named)
    memory = None
    if recipe.model.path is not None:
        from arl.run.memory import plan_recipe  # and torch with every model class of transformers, seconds of them

        versions = kept_versions(recipe, lags)
        memory = plan_recipe(recipe, nodes, placement, transport, problems.longest, versions, named is None)
    if named is None:
        check_sandboxes([*recipe.sources.values(), *(suite.recipe for suite in suites.values())])
        check_gpus(recipe, placement, transport, probe_backend(recipe))
    elif recipe.model.path is not None:
        find_backend(recipe.engine.kind).refuse_model(recipe.model.path, recipe)
    placement = _with_memory_share(recipe, placement, nodes, memory)
    said = [note for each in codecs.values() for note in each.prompts.notes()]
    return Plan(
        training=problems.training,
        held_out=[problem for suite in held_out for problem in suite.problems],
        longest=problems.longest,
        max_length=min(recipe.train.capacity, limits.context),
        context=limits.context,
        placement=placement,
        transport=transport,
        memory=memory,
        lags=lags,
        nodes=tuple(nodes),
        suites={name: list(suite.problems) for name, suite in suites.items()},
        measured=measured,
        prompts=_describe(codecs, problems.training),
        notes=tuple(dict.fromkeys([*problems.notes, *said, *filter(None, notes)])),
    )


def _check_users_of_tokens(recipe: Recipe, codecs: Mapping[str, HuggingFaceCodec]) -> list[str | None]:
    """Compare tools and other models with the policy's tokenizer; return a note about where each model is.

    Raises:
        InputError: the tokenizer cannot describe a tool; a model is nowhere, or of another vocabulary.
    """
    for each in codecs.values():
        check_tools(each, recipe.rollout.tools)
    notes = [check_model_source(path, field) for field, path in _other_models(recipe)]
    for field, path in _other_models(recipe):
        refuse_other_vocabulary(path, field, next(iter(codecs.values())))
    return notes


def _other_models(recipe: Recipe) -> list[tuple[str, str]]:
    """Return what names each model beside the policy that the run loads: field, path."""
    reference = recipe.objective.reference
    critic = recipe.train.critic
    found = []
    if reference is not None and reference.is_elsewhere and REFERENCE in recipe.objective.needed_columns:
        found.append(("objective.reference.path", reference.path))
    if critic is not None and critic.path is not None:
        found.append(("train.critic.path", critic.path))
    teacher = recipe.objective.teacher
    return found + [("objective.teacher.path", path) for path in (teacher.paths if teacher else ())]


def _check_sizes_of_others(recipe: Recipe, limits: Limits, longest: int) -> None:
    """Refuse a model whose context is shorter than a trajectory, and more of a teacher's tokens than there are."""
    for field, path in _other_models(recipe):
        if (context := model_limits(path).context) < longest:
            raise InputError(
                f"{field} {path}: its context of {context:,} tokens is shorter than a trajectory of up to {longest:,}; "
                "choose another model, or lower rollout.max_new_tokens"
            )
    teacher = recipe.objective.teacher
    if teacher is not None and teacher.top_k > limits.vocab_size:
        raise InputError(
            f"objective.teacher.top_k {teacher.top_k}: the vocabulary has {limits.vocab_size} tokens; give fewer"
        )


def _with_memory_share(
    recipe: Recipe, placement: Placement, nodes: Sequence[Node], memory: "MemoryPlan | None"
) -> Placement:
    """Give collocated engines what ranks leave of their GPUs, where their memory is known."""
    known = [node.device_bytes for node in nodes if node.device_bytes]
    if recipe.mode != "collocated" or not known:
        return placement
    share = None if memory is None else memory.engine_share
    return placement.with_memory_share(engine_share(min(known), 0, 0) if share is None else share)


def _describe(codecs: Mapping[str, HuggingFaceCodec], training: Sequence[Problem]) -> tuple[str, ...]:
    """Say how the problems of each source become prompts."""
    lines: list[str] = []
    for source, codec in codecs.items():
        first = next(problem for problem in training if problem.source == source)
        lines += [f"{source}: {line}" if source else line for line in codec.describe(first)]
    return tuple(lines)


def _check_suites(suites: Sequence[Suite], recipe: Recipe, codec: HuggingFaceCodec, limits: Limits) -> list[str]:
    """Check prompts and answers. Those of held-out problems are checked already, with a shorter answer perhaps."""
    notes: list[str] = []
    for suite in {each.name: each for each in suites}.values():
        is_checked = suite.name.partition("/")[0] == HELD_OUT and suite.max_new_tokens <= recipe.rollout.max_new_tokens
        if suite.problems and not is_checked:
            notes += suite.check_prompts(codec.with_format(suite.recipe.data), limits)
    return notes


def _check_directories(recipe: Recipe) -> None:
    """Refuse places that cannot be written."""
    refuse_unwritable(Path(recipe.output.directory))
    if recipe.warmup:
        refuse_unwritable(warmup_cache(), "ARL_CACHE (of the environment)")


def _check_named_objects(recipe: Recipe) -> None:
    """Import what the recipe names, and compare it with its seam.

    Raises:
        RecipeError: it cannot be imported, lacks a part, or has another signature.
    """
    for source in recipe.sources.values():
        if source.data.task is not None:
            task_class(source.data.task)
        import_seam(reward_name(source), "reward.function", RewardFunction, "arl/tasks/running_checksum.py")
        import_seam(env_name(source), "rollout.env", EnvFunction, "arl.rollout.env:single_turn")
    warmup_stages(recipe)
    if recipe.rollout.agent is not None:
        _check_program(recipe.rollout.agent)
    if recipe.rollout.filter is not None:
        import_seam(recipe.rollout.filter, "rollout.filter", Filter, "arl.rollout.filters:reward_varies")


def _check_program(command: str) -> None:
    """Look for the program of `rollout.agent`.

    Raises:
        RecipeError: there is none.
    """
    try:
        program = shlex.split(command)[0]
    except (ValueError, IndexError) as error:
        raise RecipeError(f"rollout.agent {command!r}: is no command ({error})") from error
    if shutil.which(program) is None:
        raise RecipeError(f"rollout.agent {command!r}: there is no program {program}; install it, or give its path")


def _place(recipe: Recipe, named: Sequence[Node] | None) -> tuple[Sequence[Node], Placement, Transport]:
    """Divide the nodes between the processes, and choose how weights travel.

    Raises:
        InputError: devices are missing, or no transport serves.
    """
    nodes = make_launcher(recipe, recipe.run_directory / LOGS).nodes if named is None else named
    placement = place(recipe, nodes)
    transport = choose_transport(
        recipe,
        backend_transports=set(recipe.engine.capabilities.transports),
        one_process=recipe.world_traits.one_process,
        on_gpus=placement.on_gpus,
        shares_memory=not placement.spans_nodes,
    )
    return nodes, placement, transport
