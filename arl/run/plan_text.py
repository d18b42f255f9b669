"""Describe what a run would do, from the recipe and preflight's plan: the page of `arl train --dry-run`. Torch-free."""

from collections.abc import Iterator, Sequence

from arl.config.recipe import Recipe
from arl.launch.base import Node, Resources
from arl.launch.devices import named_gpus
from arl.launch.placement import Placement
from arl.run.preflight import Plan
from arl.tasks.registry import SINGLE_TURN, env_name

WIDTH = 12  # characters before the text of a line
MAX_NAMED = 4  # nodes; of more, the first and the last are named


def render_plan(recipe: Recipe, plan: Plan) -> str:
    """Write the plan as one line a topic."""
    return "\n".join(f"{topic:{WIDTH}}{text}" for topic, text in _lines(recipe, plan)) + "\n"


def _lines(recipe: Recipe, plan: Plan) -> Iterator[tuple[str, str]]:
    yield "run", f"{recipe.name}, written to {recipe.run_directory}"
    yield "world", f"{recipe.world}, {recipe.mode}"
    for line in _cluster(recipe, plan):
        yield "cluster", line
    yield "model", _model(recipe)
    yield "problems", _problems(recipe, plan)
    for note in plan.left_out:
        yield "left out", note
    yield "prompts", plan.prompts
    yield "steps", _steps(recipe, plan)
    yield "tokens", _tokens(recipe, plan)
    yield "staleness", _staleness(recipe)
    engine = recipe.engine
    engines = _processes(recipe, plan, plan.placement.engines)
    yield (
        "engines",
        f"{engines}; {engine.kind}, {engine.dtype}, {engine.slots} slots each, cache policy {engine.kv_policy}",
    )
    train = recipe.train
    ranks = _processes(recipe, plan, plan.placement.ranks)
    yield "trainer", f"{ranks}; {train.dtype}, checkpointing {train.checkpointing}"
    yield "rewards", _count(recipe.reward.workers, "worker process", "worker processes")
    if recipe.eval.every:
        yield "evaluation", _evaluation(recipe, plan)
    yield "weights", f"travel by transport {plan.transport}"
    lines = ["a tiny model's, which is not planned in detail"] if plan.memory is None else plan.memory.lines()
    for line in lines:
        yield "memory", line
    seconds = recipe.deadlines.step
    yield (
        "deadlines",
        f"{recipe.deadlines.startup:,.0f} s for a start; {seconds:,.0f} s for a step and for a batch, so the longest "
        f"episode needs {recipe.rollout.max_new_tokens / seconds:.2g} tokens a second",
    )
    for gpu in plan.gpus:
        users = [
            f"{side}-{i}"  # as their logs are named
            for side, processes in _sides(plan.placement).items()
            for i, resources in enumerate(processes)
            if gpu in named_gpus(plan.gpus, resources.devices)
        ]
        yield "GPU", f"{gpu}: {', '.join(users) or 'unused'}"
    for note in _notes(recipe, plan):
        yield "note", note


def _sides(placement: Placement) -> dict[str, Sequence[Resources]]:
    """Return the processes of the run by role."""
    sides: dict[str, Sequence[Resources]] = {"engine": placement.engines, "trainer": placement.ranks}
    return sides if placement.evaluation is None else sides | {"evaluation": [placement.evaluation]}


def _model(recipe: Recipe) -> str:
    tiny = recipe.model.tiny
    if tiny is None:
        return f"{recipe.model.path}"
    shape = f"tiny: {tiny.layers} layers of width {tiny.hidden_size}, context {tiny.context} tokens"
    return f"{shape}; warm-up by the task, cached" if recipe.warmup else f"{shape}; no warm-up"


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
    if env_name(recipe) != SINGLE_TURN:  # it may add text, which is not known before
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
    where = _list_gpus(side, plan.nodes) if side[0].devices else "no GPU"
    return f"{_count(len(side), 'process', 'processes')} with {threads}{each}, {where}"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _cluster(recipe: Recipe, plan: Plan) -> Iterator[str]:
    """Yield the launcher with its nodes, unless the run is on this machine alone."""
    if recipe.launcher == "local" and len(plan.nodes) == 1:
        return
    names = {"engine": "engines"}
    places = [
        f"{names.get(side, side)} on {_names(processes, plan.nodes)}"
        for side, processes in _sides(plan.placement).items()
    ]
    count = "1 node" if len(plan.nodes) == 1 else f"{len(plan.nodes)} nodes"
    yield f"{recipe.launcher}, {count}; controller on {plan.nodes[0].name}, {', '.join(places)}"


def _list_gpus(side: Sequence[Resources], nodes: Sequence[Node]) -> str:
    """Name the GPUs of each process of a side, as in `GPU 0,1 | 2,3`; over several nodes, count them."""
    if len(nodes) == 1:
        return f"GPU {' | '.join(','.join(resources.devices) for resources in side)}"
    count = sum(len(resources.devices) for resources in side)
    return f"{_count(count, 'GPU', 'GPUs')} of {_names(side, nodes)}"


def _names(side: Sequence[Resources], nodes: Sequence[Node]) -> str:
    """Name the nodes of a side; of many, the first and the last."""
    names = [nodes[number].name for number in sorted({resources.node for resources in side})]
    if len(names) <= MAX_NAMED:
        return ", ".join(names)
    return f"{names[0]}, …, {names[-1]} ({len(names)} nodes)"


def _notes(recipe: Recipe, plan: Plan) -> Iterator[str]:
    """Yield what preflight found, then what the recipe's own settings cost."""
    yield from plan.notes
    dtypes = {"train.dtype": recipe.train.dtype, "engine.dtype": recipe.engine.dtype}
    if set(dtypes.values()) == {"float16", "bfloat16"}:
        coarse = next(field for field, dtype in dtypes.items() if dtype == "bfloat16")
        yield (
            f"float16 beside {coarse} bfloat16: one side rounds eight times coarser, so nothing is gained; set "
            f"{coarse} to float16 as well"
        )
    if not plan.placement.on_gpus:
        return
    for field, dtype in dtypes.items():
        if dtype == "float32":
            yield f"{field} float32 on GPUs: without tensor cores, and with twice the memory of bfloat16"
    if plan.memory is not None:
        yield from plan.memory.notes()
