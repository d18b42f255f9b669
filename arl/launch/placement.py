"""Divide the GPUs and the cores of the nodes between the processes of a run.

                  disaggregated                             collocated
GPUs              engines the first, ranks the rest         the same for both sides
one node, CPU     engines half of the cores, ranks half     all cores for either side
several, CPU      engines the first nodes, ranks the last   engines and ranks on every node
turns             none: both sides work at once             engines sleep from a step until its swap, without memory

recipe, nodes ─► slots: node and GPUs of each process ─► with threads, its part of the cores ─► Placement
a node is lost ─► another_place: GPUs that are free elsewhere, or on CPUs the node with the fewest threads in use

An engine's GPUs are on one node; on a CPU its workers (engine.tensor_parallel) share its threads. Ranks are on as few
nodes as possible, equally many on each, because then a copy of the weights can be kept on each node
(train.shard_ranks).

Reward workers to which the recipe gives several threads take their cores first, at most half of the controller's node.
With eval.every a process for evaluation is added: on GPUs behind all others, on a CPU with the threads of an engine.
"""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from arl.config.recipe import Recipe
from arl.errors import RecipeError
from arl.launch.base import Node, Resources
from arl.launch.devices import VISIBLE_DEVICES

# Kept free beside a trainer rank for NCCL's buffers, SGLang's graphs and activations, and what nobody foresees: a share
# of the device, and at least so many bytes. SGLang keeps 10 to 12 GB of an 80 GB device (arg_groups/memory_hook.py).
RESERVE = 0.15
MIN_RESERVE = 4_500_000_000
MIN_SHARE = 0.05  # an engine without any cache would not start; SGLang then says how much it lacks

Free = dict[int, list[str]]  # number of a node -> its GPUs that nothing uses, as CUDA_VISIBLE_DEVICES names them


@dataclass(frozen=True)
class Placement:
    """Hold the resources of each process.

    Args:
        engines: by replica.
        ranks: by trainer rank.
        evaluation: of the process that evaluates during training; None: there is none.
        teachers: of each server of a teacher.
    """

    engines: list[Resources]
    ranks: list[Resources]
    evaluation: Resources | None = None
    teachers: list[Resources] = field(default_factory=list)

    @property
    def on_gpus(self) -> bool:
        """Return whether the trainer's ranks have GPUs."""
        return bool(self.ranks[0].devices)

    @property
    def spans_nodes(self) -> bool:
        """Return whether the run is on more nodes than the controller's; processes of two nodes share no memory."""
        return any(resources.node != 0 for resources in self._all)

    @property
    def ranks_per_node(self) -> int | None:
        """Return how many ranks each node of the trainer has; None: not equally many."""
        counts = set(Counter(rank.node for rank in self.ranks).values())
        return counts.pop() if len(counts) == 1 else None

    def devices_of(self, node: int) -> tuple[str, ...]:
        """Return the GPUs of a node that the run uses, each once."""
        return tuple(dict.fromkeys(device for one in self._all if one.node == node for device in one.devices))

    @property
    def beside_engines(self) -> list[Resources]:
        """Return the resources of every process that is no engine of the policy."""
        return [*self.ranks, *([] if self.evaluation is None else [self.evaluation]), *self.teachers]

    @property
    def _all(self) -> list[Resources]:
        return [*self.engines, *self.beside_engines]

    def with_memory_share(self, share: float) -> "Placement":
        """Return the same placement, in which an engine may take only this fraction of each of its devices."""
        engines = [replace(engine, memory_share=share) for engine in self.engines]
        return replace(self, engines=engines)


def place(recipe: Recipe, nodes: Sequence[Node]) -> Placement:
    """Divide `nodes`, of which the first is the controller's, between the two sides.

    Raises:
        RecipeError: there are GPUs, but fewer than the recipe's processes need.
    """
    if recipe.world_traits.one_process:
        nodes = [replace(nodes[0], devices=())]  # one process computes on the CPU
    if any(node.devices for node in nodes):
        return _with_threads(recipe, nodes, _slots_on_gpus(recipe, nodes))
    return _with_threads(recipe, nodes, _slots_on_cpus(recipe, len(nodes)))


def fitting_ranks(recipe: Recipe, devices: int) -> int:
    """Return the number of ranks with which `recipe` resumes on `devices` GPUs: train.ranks, or fewer.

    Fewer than train.ranks are taken only with train.min_ranks, and as a multiple of train.shard_ranks. On CPUs, where
    `devices` is 0, nothing limits them.

    Raises:
        RecipeError: not even train.min_ranks fit.
    """
    train = recipe.train
    if train.min_ranks is None or devices == 0:
        return train.ranks
    width = recipe.engine.tensor_parallel
    of_engines = 0 if recipe.mode == "collocated" else recipe.engine.replicas * width
    of_evaluation = width if recipe.evaluates_beside else 0
    unit = train.shard_ranks or 1
    of_teachers = width * recipe.num_teachers
    ranks = min(devices - of_engines - of_evaluation - of_teachers, train.ranks) // unit * unit
    if ranks < train.min_ranks:
        raise RecipeError(
            f"train.min_ranks {train.min_ranks}: {devices} GPUs are left, on which {max(ranks, 0)} ranks fit beside "
            f"the engines, as a multiple of train.shard_ranks {unit}; use fewer engine.replicas, a smaller "
            "train.min_ranks, or more nodes"
        )
    return ranks


def engine_share(device_bytes: int, used_bytes: int, later_bytes: int) -> float:
    """Return the fraction of a GPU that an engine's weights and cache may take beside a trainer rank (mode collocated).

    SGLang sizes its cache so that, of what was free when it began, the share 1 - f stays free
    (`_profile_available_bytes` in mem_cache/kv_cache_configurator.py, 0.5.20), with f from 0.83 to 0.9 unless it is
    given. It begins when the rank is ready, so weights and moments are no longer free. What the rank allocates
    afterwards has to fit into the rest, with the reserve.

    Args:
        device_bytes: memory of the device.
        used_bytes: what is not free when the engine begins: both contexts, the rank's weights and moments.
        later_bytes: what the rank will hold besides while the engine generates: published versions.

    >>> engine_share(80_000_000_000, 20_000_000_000, 6_000_000_000)
    0.7
    """
    free = max(device_bytes - used_bytes, 1)
    kept = max(RESERVE * device_bytes, MIN_RESERVE) + later_bytes
    return max(round(1 - kept / free, 3), MIN_SHARE)


def another_place(
    resources: Resources, others: Sequence[Resources], nodes: Sequence[Node], lost: Collection[int]
) -> Resources | None:
    """Return what a process gets on another node than its own; None: no node that is left has room for it.

    Args:
        resources: what it had.
        others: of every other process of the run; those on lost nodes hold nothing.
        nodes: of the launcher.
        lost: numbers of the nodes that have failed, its own among them.
    """
    free = _without({number: list(node.devices) for number, node in enumerate(nodes) if number not in lost}, others)
    if resources.devices:
        count = len(resources.devices)
        fitting = [number for number, devices in free.items() if len(devices) >= count]
        return replace(resources, node=fitting[0], devices=tuple(free[fitting[0]][:count])) if fitting else None
    threads: Counter[int] = Counter()
    for other in others:
        threads[other.node] += other.threads
    return replace(resources, node=min(free, key=lambda number: threads[number])) if free else None


def _slots_on_gpus(recipe: Recipe, nodes: Sequence[Node]) -> Placement:
    """Choose the GPUs of every process, without threads yet.

    Raises:
        RecipeError: there are too few, or an engine does not fit on any node.
    """
    width = recipe.engine.tensor_parallel
    of_engines = recipe.engine.replicas * width
    num_ranks = recipe.train.ranks
    of_evaluation = width if recipe.evaluates_beside else 0
    is_collocated = recipe.mode == "collocated"
    of_teachers = width * recipe.num_teachers
    needed = of_evaluation + of_teachers + (max(of_engines, num_ranks) if is_collocated else of_engines + num_ranks)
    found = sum(len(node.devices) for node in nodes)
    if found < needed:
        together = "on the same GPUs" if is_collocated else "on GPUs of their own"
        raise RecipeError(
            f"mode {recipe.mode}: {needed} GPUs are needed, and there are {found} "
            f"({nodes[0].planned_by or 'visible'}): engines need {of_engines} (engine.replicas × "
            f"engine.tensor_parallel), the trainer {num_ranks} (train.ranks) {together}, evaluation during training "
            f"{of_evaluation} (eval.every), teachers {of_teachers} (objective.teacher); use fewer of them, mode "
            f"collocated, more GPUs, or {VISIBLE_DEVICES}= for the CPU"
        )
    free = {number: list(node.devices) for number, node in enumerate(nodes)}
    if is_collocated:
        ranks = _take_evenly(free, num_ranks)
        shared = {number: list(node.devices) for number, node in enumerate(nodes)}
        if of_engines <= num_ranks:
            shared = {number: [rank.devices[0] for rank in ranks if rank.node == number] for number in free}
        engines = [_take(shared, width) for _ in range(recipe.engine.replicas)]
    else:
        engines = [_take(free, width) for _ in range(recipe.engine.replicas)]
        ranks = _take_evenly(free, num_ranks)
    left = _without(free, engines)
    evaluation = _take(left, width) if of_evaluation else None
    return Placement(engines, ranks, evaluation, [_take(left, width) for _ in range(recipe.num_teachers)])


def _without(free: Free, others: Sequence[Resources]) -> Free:
    """Return what is free without what these processes use."""
    used = {(other.node, device) for other in others for device in other.devices}
    return {node: [device for device in devices if (node, device) not in used] for node, devices in free.items()}


def _take(free: Free, count: int) -> Resources:
    """Take `count` GPUs of one node, the first that has so many.

    Raises:
        RecipeError: no node has so many left.
    """
    for node, devices in free.items():
        if len(devices) >= count:
            taken = tuple(devices[:count])
            del devices[:count]
            return Resources(threads=0, devices=taken, node=node)
    left = ", ".join(str(len(devices)) for devices in free.values())
    raise RecipeError(
        f"engine.tensor_parallel {count}: no node has so many GPUs left for another engine ({left} by node); use a "
        "smaller one, fewer engine.replicas or train.ranks, or more nodes"
    )


def _take_evenly(free: Free, count: int) -> list[Resources]:
    """Take `count` GPUs for one process each, of as few nodes as possible, equally many of each.

    Where that is impossible, they are taken in the order of the nodes. There must be so many.
    """
    for num_nodes in range(1, len(free) + 1):
        each, rest = divmod(count, num_nodes)
        fitting = [node for node, devices in free.items() if len(devices) >= each]
        if rest == 0 and len(fitting) >= num_nodes:
            return [_take({node: free[node]}, 1) for node in fitting[:num_nodes] for _ in range(each)]
    return [_take(free, 1) for _ in range(count)]


def _slots_on_cpus(recipe: Recipe, num_nodes: int) -> Placement:
    """Deal the processes to the nodes in turn, without threads yet.

    Evaluation is on the controller's node, with the lowest priority. In mode disaggregated the trainer has nodes of its
    own, the last ones, so that each side has all cores of its nodes and neither the controller nor an engine is lost
    with the trainer's node.
    """
    num_ranks = recipe.train.ranks
    of_engines = of_ranks = range(num_nodes)
    if recipe.mode == "disaggregated" and num_nodes > 1:
        first = num_nodes - min(num_ranks, num_nodes // 2)
        of_engines = range(first)
        of_ranks = range(first, num_nodes)
    each = math.ceil(num_ranks / len(of_ranks))  # neighbors in the order of ranks share a node
    return Placement(
        engines=[Resources(0, node=of_engines[replica % len(of_engines)]) for replica in range(recipe.engine.replicas)],
        ranks=[Resources(0, node=of_ranks[rank // each]) for rank in range(num_ranks)],
        evaluation=Resources(0) if recipe.evaluates_beside else None,
        teachers=[Resources(0, node=of_engines[-1])] * recipe.num_teachers,
    )


def _with_threads(recipe: Recipe, nodes: Sequence[Node], slots: Placement) -> Placement:
    """Divide the cores of each node between the processes that have their slots there."""
    is_collocated = recipe.mode == "collocated"

    def share(slot: Resources, is_engine: bool) -> Resources:
        """Return what one process uses: its part of the cores of its side, unless the recipe gives its threads."""
        cores = nodes[slot.node].cores
        if slot.node == 0:  # the controller's, and so that of the reward workers
            cores -= min(recipe.reward.cores, cores // 2)
        engines = sum(one.node == slot.node for one in slots.engines)
        ranks = sum(one.node == slot.node for one in slots.ranks)
        if engines and ranks and not is_collocated:
            half = max(cores // 2, 1)
            cores = half if is_engine else cores - half
        given = recipe.engine.threads if is_engine else recipe.train.threads
        threads = given or max(cores // (engines if is_engine else ranks), 1)
        return replace(slot, threads=threads, takes_turns=is_collocated)

    engines = [share(slot, is_engine=True) for slot in slots.engines]
    ranks = [share(slot, is_engine=False) for slot in slots.ranks]
    evaluation = slots.evaluation and replace(slots.evaluation, threads=engines[0].threads)
    teachers = [replace(slot, threads=engines[0].threads) for slot in slots.teachers]
    return Placement(engines, ranks, evaluation, teachers)
