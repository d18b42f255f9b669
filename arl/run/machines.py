"""Settle what a recipe leaves to the machines, and name machines that are only planned for. Torch-free.

train.dtype, engine.dtype: auto ─► bfloat16 where the run has GPUs, float32 where it computes on the CPU
train.shard_ranks: null         ─► with ranks on several nodes, those of one node: a copy of the weights on each
train.ranks, with min_ranks     ─► fewer, where a run is resumed on fewer GPUs than it had
--gpus 8xH100                   ─► a node that is not there
"""

import re
from collections.abc import Callable, Sequence

from arl.config.recipe import Recipe
from arl.errors import InputError
from arl.launch.base import Node, make_launcher
from arl.launch.devices import visible_cores
from arl.launch.placement import fitting_ranks, place
from arl.metrics.run_files import LOGS

AUTO = "auto"
GIGABYTE = 10**9
# Memory of one GPU by its maker's data sheet, in units of 10^9 bytes.
KNOWN = {"A100": 80, "H100": 80, "H800": 80, "H200": 141, "B200": 180, "L40S": 48, "RTX4090": 24, "RTX5090": 32}
PATTERN = re.compile(r"([1-9]\d?)X(([1-9]\d{0,5})GB|.+)")


def resolve_auto(recipe: Recipe, named: Sequence[Node] | None = None) -> Recipe:
    """Return the recipe without what is left to the machines; the plan shows it, the run's recipe.yaml keeps it.

    Args:
        named: machines to plan for; None: the launcher's.

    Raises:
        RecipeError: the recipe's launcher cannot be made, or there are too few devices.
    """
    train = recipe.train
    engine = recipe.engine
    may_need_shards = train.ranks > 1 and train.shard_ranks is None
    if AUTO not in (train.dtype, engine.dtype) and not may_need_shards:
        return recipe  # no launcher is made to look at machines
    nodes = _nodes_of(recipe) if named is None else named
    on_gpus = any(node.devices for node in nodes) and not recipe.world_traits.one_process
    dtype = "bfloat16" if on_gpus else "float32"
    if engine.dtype == AUTO:
        engine = engine.model_copy(update={"dtype": dtype})
    if train.dtype == AUTO:
        train = train.model_copy(update={"dtype": dtype})
    if may_need_shards and len(nodes) > 1:
        placement = place(recipe, nodes)
        if len({rank.node for rank in placement.ranks}) > 1:
            train = train.model_copy(update={"shard_ranks": placement.ranks_per_node})
    return recipe.model_copy(update={"engine": engine, "train": train})


def fit_to_what_is_left(recipe: Recipe, note: Callable[[str], None]) -> Recipe:
    """Return the recipe of a resumed run with as many ranks as the GPUs that are left allow; see train.min_ranks.

    Raises:
        RecipeError: the recipe's launcher cannot be made, or even train.min_ranks do not fit.
    """
    if recipe.train.min_ranks is None:
        return recipe
    devices = sum(len(node.devices) for node in _nodes_of(recipe))
    ranks = fitting_ranks(recipe, devices)
    if ranks == recipe.train.ranks:
        return recipe
    note(f"{devices} GPUs are left: resuming with train.ranks {ranks} instead of {recipe.train.ranks}")
    train = recipe.train.model_copy(update={"ranks": ranks})
    return recipe.model_copy(update={"train": train})


def _nodes_of(recipe: Recipe) -> Sequence[Node]:
    """Return the machines of the recipe's launcher."""
    return make_launcher(recipe, recipe.run_directory / LOGS).nodes


def named_nodes(text: str, count: int) -> list[Node]:
    """Return `count` machines with the GPUs that `text` names each, and as many CPU cores as this one.

    >>> (node,) = named_nodes("2xH100", 1)
    >>> node.devices, node.device_name, node.device_bytes
    (('0', '1'), 'H100', 80000000000)

    Raises:
        InputError: not of the form NUMBERxNAME or NUMBERxMEMORYGB, or a GPU that is not known.
    """
    match = PATTERN.fullmatch(re.sub(r"[\s_-]", "", text).upper())
    if match is None:
        raise InputError(f"--gpus {text}: give a number and a kind, as in 8xH100 or 8x80GB")
    number, kind, size = match.groups()
    gigabytes = int(size) if size else KNOWN.get(kind)
    if gigabytes is None:
        known = ", ".join(KNOWN)
        raise InputError(f"--gpus {text}: {kind} is not known; give one of {known}, or its memory, as in 8x80GB")
    return [
        Node(
            name="the named machine" if count == 1 else f"node {place_of}",
            cores=visible_cores(),
            devices=tuple(str(device) for device in range(int(number))),
            device_name="GPU" if size else kind,
            device_bytes=gigabytes * GIGABYTE,
            planned_by=f"--gpus {text}",
        )
        for place_of in range(1, count + 1)
    ]
