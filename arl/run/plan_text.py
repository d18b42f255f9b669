"""Describe what a run would do, from the recipe and preflight's plan: the page of `arl train --dry-run`. Torch-free."""

import math
from collections.abc import Iterator, Sequence

from arl.config.recipe import Recipe, Rollout
from arl.config.scoring_sections import HELD_OUT
from arl.launch.base import Resources
from arl.run.preflight import Plan
from arl.run.rewards import reward_name, reward_weights
from arl.run.starting_model import warmup_job
from arl.tasks.registry import env_name

WIDTH = 12  # characters before the text of a line
FEW_ANSWERS = 100  # with fewer, an evaluation is noted to be noisy


def render_plan(recipe: Recipe, plan: Plan) -> str:
    """Write the plan as one line a topic."""
    return "\n".join(f"{topic:{WIDTH}}{text}" for topic, text in _lines(recipe, plan)) + "\n"


def _lines(recipe: Recipe, plan: Plan) -> Iterator[tuple[str, str]]:
    engine = recipe.engine
    train = recipe.train
    rollout = recipe.rollout
    placement = plan.placement
    yield "run", f"{recipe.name}, written to {recipe.run_directory}"
    yield "world", f"{recipe.world}, {recipe.mode}"
    yield from named(recipe)
    if recipe.launcher != "local" or len(plan.nodes) > 1:
        sides = f"engines on {_names(placement.engines, plan)}, trainer on {_names(placement.ranks, plan)}"
        nodes = _count(len(plan.nodes), "node")
        yield "cluster", f"{recipe.launcher}, {nodes}; controller on {plan.nodes[0].name}, {sides}"
    yield "model", recipe.model.path or _tiny_model(recipe)
    suites = "".join(f", {len(problems):,} of the suite {name}" for name, problems in plan.suites.items())
    counts = f"{len(plan.training):,} for training, {len(plan.held_out):,} held out for evaluation{suites}"
    yield "problems", f"{recipe.where_problems_are}: {counts}; sha256 {plan.sha256(train.steps)[:12]}"
    for line in plan.prompts:
        yield "prompts", line
    per_step = rollout.problems_per_step
    epochs = train.steps * per_step / len(plan.training)
    minibatches = _count(train.minibatches, "minibatch", "minibatches")
    yield "steps", f"{train.steps:,} of {per_step} problems, {epochs:.2f} epochs; {minibatches} a step"
    episodes = per_step * rollout.group_size
    sampled = f"at most {episodes * rollout.max_new_tokens:,} sampled a step"
    of_episodes = f"({episodes:,} episodes of {rollout.max_new_tokens:,})"
    lengths = f"trajectories up to {plan.longest:,} without what an env adds, micro-batches up to {train.capacity:,}"
    yield "tokens", f"{sampled} {of_episodes}; {lengths}"
    yield "staleness", _staleness(rollout)
    engines = _processes(recipe, plan, placement.engines)
    width = engine.tensor_parallel
    kind = engine.kind if width == 1 else f"{engine.kind} of {width} workers"
    yield (
        "engines",
        f"{engines}; {kind}, {engine.dtype}, {engine.slots} slots each, cache policy {engine.kv_policy}",
    )
    ranks = _processes(recipe, plan, placement.ranks)
    yield "trainer", f"{ranks}; {train.dtype}, checkpointing {train.checkpointing}"
    cores = f" with {_count(recipe.reward.cores, 'CPU core')}" if recipe.reward.cores else ""
    yield "rewards", _count(recipe.reward.workers, "worker process", "worker processes") + cores
    if recipe.eval.every:
        suites = ", ".join(f"{suite.name} by {reward_name(suite.recipe)}" for suite in plan.measured)
        what = f"{suites} every {recipe.eval.every} steps; best by {recipe.eval.decides}"
        where = "in this process, between two steps"
        if placement.evaluation is not None:
            where = _processes(recipe, plan, [placement.evaluation])
        yield "evaluation", f"{what}; {where}"
    yield "weights", f"travel by transport {plan.transport}"
    for line in ["not planned for a tiny model"] if plan.memory is None else plan.memory.lines():
        yield "memory", line
    for note in notes(recipe, plan):
        yield "note", note


def notes(recipe: Recipe, plan: Plan) -> Iterator[str]:
    """Yield what preflight found, and where there are too few problems for what the recipe does with them."""
    yield from plan.notes
    per_step = recipe.rollout.problems_per_step
    if per_step > len(plan.training):
        yield f"rollout.problems_per_step {per_step}: a step holds some of the {len(plan.training)} problems twice"
    updates = recipe.train.steps * recipe.train.minibatches
    if recipe.train.ramp_steps > updates:
        yield f"train.ramp_steps {recipe.train.ramp_steps}: the run ends in the ramp, after {updates} updates"
    answers = {HELD_OUT: len(plan.held_out) * recipe.eval.samples}
    for name, count in (answers | {suite.name: suite.num_episodes for suite in plan.measured}).items():
        if 0 < count < FEW_ANSWERS:
            error = 50 / math.sqrt(count)  # percentage points
            yield f"{name}: {count} answers; an accuracy near 50 % has a standard error of {error:.1f} points"


def named(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield what a run is made of, as ("objective", "ppo")."""
    yield "objective", recipe.objective.kind
    yield "advantage", recipe.advantage.kind
    for name, source in recipe.sources.items():
        of = f"{name}: " if name else ""
        weights = ", ".join(f"{part} {weight:g}" for part, weight in reward_weights(source).items())
        yield "reward", of + reward_name(source) + (f" with weights {weights}" if weights else "")
        yield "env", of + (source.rollout.agent or env_name(source))
    yield "filter", recipe.rollout.filter or "none"


def _tiny_model(recipe: Recipe) -> str:
    if not recipe.warmup:
        return "tiny, with random weights"
    _, cached = warmup_job(recipe)
    return f"tiny; warm-up by the task, {'cached' if cached.exists() else 'not yet cached'} in {cached}"


def _staleness(rollout: Rollout) -> str:
    if rollout.lag is not None:
        return f"exactly rollout.lag {rollout.lag}"
    if rollout.staleness is None:
        return f"no bound; up to {rollout.max_groups:,} groups in flight"
    gate = (rollout.staleness + 1) * rollout.problems_per_step
    return f"at most {rollout.staleness} versions; up to {min(gate, rollout.max_groups or gate):,} groups in flight"


def _processes(recipe: Recipe, plan: Plan, side: Sequence[Resources]) -> str:
    """Count the processes of a side, and name the GPUs of each, as in `GPU 0,1 | 2,3`; on several nodes, count them."""
    if recipe.world_traits.one_process:
        return f"{len(side)} in this process, 1 thread"
    each = " each" if len(side) > 1 else ""
    threads = f"{_count(side[0].threads, 'CPU thread')}{each}"
    where = "no GPU"
    if side[0].devices and len(plan.nodes) == 1:
        where = f"GPU {' | '.join(','.join(resources.devices) for resources in side)}"
    elif side[0].devices:
        count = sum(len(resources.devices) for resources in side)
        where = f"{_count(count, 'GPU')} of {_names(side, plan)}"
    return f"{_count(len(side), 'process', 'processes')} with {threads}, {where}"


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def _names(side: Sequence[Resources], plan: Plan) -> str:
    return ", ".join(plan.nodes[number].name for number in sorted({resources.node for resources in side}))
