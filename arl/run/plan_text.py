"""Describe what a run would do, from the recipe and preflight's plan: the page of `arl train --dry-run`. Torch-free."""

from collections.abc import Iterator, Sequence

from arl.config.recipe import Recipe
from arl.launch.base import Resources
from arl.launch.gpu_devices import Gpu, named_gpus
from arl.run.memory.memory_text import memory_lines, published_on_device
from arl.run.plan_nodes import cluster_lines, list_gpus
from arl.run.plan_notes import plan_notes
from arl.run.preflight import Plan
from arl.sync.node_copy import SHARED_MEMORY
from arl.tasks.registry import SINGLE_TURN, env_name

WIDTH = 12  # characters before the text of a line


def render_plan(recipe: Recipe, plan: Plan) -> str:
    """Write the plan as one line a topic."""
    return "\n".join(f"{topic:{WIDTH}}{text}" for topic, text in _lines(recipe, plan)) + "\n"


def _lines(recipe: Recipe, plan: Plan) -> Iterator[tuple[str, str]]:
    yield "run", f"{recipe.name}, written to {recipe.run_directory}"
    yield "world", f"{recipe.world}, {recipe.mode}"
    for line in cluster_lines(recipe, plan):
        yield "cluster", line
    yield "model", _model(recipe)
    yield "problems", _problems(recipe, plan)
    for note in plan.left_out:
        yield "left out", note
    yield "prompts", plan.prompts
    yield "steps", _steps(recipe, plan)
    yield "tokens", _tokens(recipe, plan)
    yield "staleness", _staleness(recipe)
    yield "engines", _engines(recipe, plan)
    yield "trainer", _trainer(recipe, plan)
    yield "rewards", _count(recipe.reward.workers, "worker process", "worker processes")
    if recipe.eval.every:
        yield "evaluation", _evaluation(recipe, plan)
    yield "weights", _weights(recipe, plan)
    for line in _memory(recipe, plan):
        yield "memory", line
    yield "deadlines", _deadlines(recipe)
    for gpu in plan.gpus:
        yield "GPU", f"{gpu}: {', '.join(_users(gpu, plan)) or 'unused'}"
    for note in plan_notes(recipe, plan):
        yield "note", note


def _weights(recipe: Recipe, plan: Plan) -> str:
    way = f"travel by transport {plan.transport}{_where_published(plan)}"
    return ", ".join([way, *_pace(recipe)])


def _where_published(plan: Plan) -> str:
    """Say where engines take weights from; nothing where it is not known, or is only one place."""
    if plan.published_in is not None and plan.placement.spans_nodes:
        return f", in {plan.published_in}, where each node reads a version once"
    if plan.published_in is not None:
        disk = "" if plan.published_in == SHARED_MEMORY else f" on disk, because {SHARED_MEMORY} has no room: slower"
        return f", in {plan.published_in}{disk}"
    if plan.transport != "broadcast" or not plan.placement.on_gpus or plan.memory is None:
        return ""
    if published_on_device(plan.memory):
        return ", from rank 0's GPU"
    return ", from pinned memory of the host"


def _pace(recipe: Recipe) -> Iterator[str]:
    """Yield the choices of when engines load weights, and how, that are not the default."""
    sync = recipe.sync
    if sync.every > 1:
        yield f"every {sync.every} versions"
    if sync.min_seconds:
        yield f"at most once in {sync.min_seconds:g} s"
    if sync.order == "in_turn":
        yield "to one engine after the other"
    if not sync.interrupt:
        yield "when episodes have ended"
    if sync.check:
        yield "compared after each swap"


def _deadlines(recipe: Recipe) -> str:
    seconds = recipe.deadlines.step
    rate = recipe.rollout.max_new_tokens / seconds
    return (
        f"{recipe.deadlines.startup:,.0f} s for a start; {seconds:,.0f} s for a step and for a batch, so the longest "
        f"episode needs {rate:.2g} tokens a second"
    )


def _users(gpu: Gpu, plan: Plan) -> Iterator[str]:
    """Yield the processes of the run that use a GPU, under the names of their logs."""
    placement = plan.placement
    sides = {"engine": placement.engines, "trainer": placement.ranks}
    if placement.evaluation is not None:
        sides["evaluation"] = [placement.evaluation]
    for side, processes in sides.items():
        for i, resources in enumerate(processes):
            if gpu in named_gpus(plan.gpus, resources.devices):
                yield f"{side}-{i}"


def _model(recipe: Recipe) -> str:
    tiny = recipe.model.tiny
    if tiny is None:
        return f"{recipe.model.path}"
    shape = f"tiny: {tiny.layers} layers of width {tiny.hidden_size}, context {tiny.context} tokens"
    return f"{shape}; warm-up by the task, cached" if recipe.warmup is not None else f"{shape}; no warm-up"


def _problems(recipe: Recipe, plan: Plan) -> str:
    source = recipe.data.task or recipe.data.path
    suites = "".join(f", {len(problems):,} of the suite {name}" for name, problems in plan.suites.items())
    digest = plan.sha256(recipe.train.steps)[:12]
    return (
        f"{source}: {len(plan.training):,} for training, {len(plan.held_out):,} held out for evaluation{suites}; "
        f"sha256 {digest}"
    )


def _steps(recipe: Recipe, plan: Plan) -> str:
    per_step = recipe.rollout.problems_per_step
    epoch = len(plan.training) / per_step
    epochs = recipe.train.steps / epoch
    return (
        f"{recipe.train.steps:,} of {per_step} problems; an epoch is {epoch:,.1f} steps, so the run is "
        f"{epochs:.2f} epochs; {_count(recipe.train.minibatches, 'minibatch', 'minibatches')} a step"
    )


def _tokens(recipe: Recipe, plan: Plan) -> str:
    rollout = recipe.rollout
    episodes = rollout.problems_per_step * rollout.group_size
    trajectories = f"trajectories up to {plan.longest:,}"
    if env_name(recipe) != SINGLE_TURN:  # it may add text, which nobody knows before
        trajectories += f" and what the env adds, up to {plan.max_length:,}"
    return (
        f"at most {episodes * rollout.max_new_tokens:,} sampled a step ({episodes:,} episodes of "
        f"{rollout.max_new_tokens:,}); {trajectories}, micro-batches up to {recipe.train.capacity:,}"
    )


def _staleness(recipe: Recipe) -> str:
    rollout = recipe.rollout
    if rollout.lag is not None:
        return f"exactly rollout.lag {rollout.lag}"
    if rollout.staleness is None:
        return f"no bound; up to {rollout.max_groups:,} groups in flight"
    gate = (rollout.staleness + 1) * rollout.problems_per_step
    in_flight = gate if rollout.max_groups is None else min(gate, rollout.max_groups)
    return f"at most {rollout.staleness} versions; up to {in_flight:,} groups in flight"


def _engines(recipe: Recipe, plan: Plan) -> str:
    engine = recipe.engine
    name = f"{engine.kind}, {engine.dtype}, {engine.slots} slots each, cache policy {engine.kv_policy}"
    return f"{_processes(recipe, plan, plan.placement.engines)}; {name}"


def _trainer(recipe: Recipe, plan: Plan) -> str:
    train = recipe.train
    choices = [train.dtype, f"checkpointing {train.checkpointing}"]
    if train.head != "auto":
        choices.append(f"head {train.head}")
    if train.reshard:
        choices.append("reshard")
    if train.deterministic:
        choices.append("deterministic")
    return f"{_processes(recipe, plan, plan.placement.ranks)}; {', '.join(choices)}"


def _evaluation(recipe: Recipe, plan: Plan) -> str:
    what = f"{', '.join(recipe.eval.suites)} every {recipe.eval.every} steps; best by {recipe.eval.decides}"
    resources = plan.placement.evaluation
    if resources is None:
        return f"{what}; in this process, between two steps"
    return f"{what}; {_processes(recipe, plan, [resources])}"


def _processes(recipe: Recipe, plan: Plan, side: Sequence[Resources]) -> str:
    if recipe.world_traits.one_process:
        return f"{len(side)} in this process, 1 thread"
    threads = _count(side[0].threads, "CPU thread", "CPU threads")
    each = " each" if len(side) > 1 else ""
    where = list_gpus(side, plan.nodes) if side[0].devices else "no GPU"
    return f"{_count(len(side), 'process', 'processes')} with {threads}{each}, {where}"


def _memory(recipe: Recipe, plan: Plan) -> Iterator[str]:
    if plan.memory is None:
        yield "a tiny model's, which is not planned in detail"
    else:
        yield from memory_lines(plan.memory, recipe)


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
