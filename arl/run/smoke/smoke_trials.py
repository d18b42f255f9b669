"""Decide what is tried: engine backends, precisions and transports, each as a recipe around the small model.

RECIPE  its engine, mode, dtypes, replicas, ranks, environments and temperature        one backend
none    one replica and one rank on a CPU; with GPUs all of them, half for each side   every backend that is found
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from arl.config.recipe import EngineConfig, Recipe, Train
from arl.engine.backend import BUILT_IN, Installation, find_backend
from arl.errors import InputError
from arl.launch.base import Node
from arl.launch.placement import place
from arl.run.auto import AUTO
from arl.run.smoke.smoke_types import Precision
from arl.sync.choose import choose_transport
from arl.types import Transport

PLAIN_SLOTS = 32
LEARNING_RATE = 1e-2  # × the standard deviation of the weights, which is 1 / √width
BETWEEN_PROCESSES: tuple[Transport, ...] = ("file", "broadcast", "ipc")


@dataclass(frozen=True)
class Trial:
    """Hold one engine backend with a recipe to run it, and the ways by which it can take weights here.

    Args:
        transports: those that work with these devices.
        refused: the others, each with the reason.
    """

    kind: str
    found: Installation
    recipe: Recipe
    transports: tuple[Transport, ...]
    refused: dict[Transport, str]


def precisions(recipe: Recipe | None, on_gpus: bool) -> list[Precision]:
    """Return the pairs of dtypes to compare: the recipe's own first, then those that both sides know.

    On a CPU float16 is left out, unless it is the recipe's: nobody computes in it there.
    """
    known = [name for name in _dtypes(Train) if name in _dtypes(EngineConfig) and (on_gpus or name != "float16")]
    preferred = "bfloat16" if on_gpus else "float32"
    known.sort(key=lambda name: name != preferred)
    pairs = [Precision(name, name) for name in known]
    if recipe is None:
        return pairs
    own = Precision(recipe.engine.dtype, recipe.train.dtype)
    return [own, *(pair for pair in pairs if pair != own)]


def backends(recipe: Recipe | None, python: str | None) -> tuple[dict[str, Installation], dict[str, str]]:
    """Look for the recipe's backend, or for every built-in one.

    Args:
        python: interpreter of backends that have one of their own, instead of the recipe's.

    Returns:
        What was found, by kind; and for those that were not, why.
    """
    kinds = BUILT_IN if recipe is None else [recipe.engine.kind]
    found: dict[str, Installation] = {}
    missing: dict[str, str] = {}
    for kind in kinds:
        section = EngineConfig(kind=kind) if recipe is None else recipe.engine
        if python is not None:
            section = section.model_copy(update={"python": python})
        try:
            found[kind] = find_backend(kind).probe(section)
        except InputError as error:
            missing[kind] = str(error)
    return found, missing


def make_trial(
    recipe: Recipe | None,
    kind: str,
    found: Installation,
    precision: Precision,
    model: Path,
    node: Node,
    python: str | None,
) -> Trial:
    """Make the trial of one backend and one precision.

    Args:
        model: directory of the small model.
        node: where its processes will run.
        python: see backends.

    Raises:
        InputError: the recipe's processes do not fit on this machine.
    """
    width = _width(model)
    fields = _plain(kind, node) if recipe is None else _as_recipe(recipe)
    fields["name"] = "smoke"
    fields["model"] = {"path": str(model)}
    fields["data"] = {"task": "running_checksum"}
    fields["output"] = {"trajectories": True}
    engine = fields["engine"]
    engine |= {"dtype": precision.engine, "max_restarts": 0}
    if python is not None:
        engine["python"] = python
    fields["train"] |= {
        "dtype": precision.train,
        "steps": 1000,
        "minibatches": 1,
        "learning_rate": LEARNING_RATE * width**-0.5,
    }
    is_whole = engine.get("tensor_parallel", 1) == 1
    fields.setdefault("sync", {})["check"] = is_whole and found.capabilities.checksums
    made = _validated(fields)
    transports, refused = _transports(made, fields, found, node)
    return Trial(kind, found, made, transports, refused)


def _transports(
    recipe: Recipe, fields: dict[str, Any], found: Installation, node: Node
) -> tuple[tuple[Transport, ...], dict[Transport, str]]:
    """Return the transports that work here, and why the others do not."""
    placement = place(recipe, [node])
    works: list[Transport] = []
    refused: dict[Transport, str] = {}
    for transport in BETWEEN_PROCESSES:
        try:
            asking = _validated({**fields, "sync": {**fields["sync"], "transport": transport}})
            choose_transport(
                asking,
                backend_transports=found.capabilities.transports,
                one_process=False,
                on_gpus=placement.on_gpus,
            )
        except InputError as error:
            refused[transport] = str(error)
        else:
            works.append(transport)
    return tuple(works), refused


def _plain(kind: str, node: Node) -> dict[str, Any]:
    """Return the settings without a recipe: all devices, or on one GPU both sides in turn."""
    count = len(node.devices)
    engine: dict[str, Any] = {"kind": kind, "slots": PLAIN_SLOTS}
    train: dict[str, Any] = {}
    if count > 1:
        engine["replicas"] = count // 2
        train["ranks"] = count - count // 2
    mode = "collocated" if count == 1 else "disaggregated"
    return {"mode": mode, "engine": engine, "train": train}


def _as_recipe(recipe: Recipe) -> dict[str, Any]:
    """Return what is taken from the recipe; its task, schedule and objective are not tested."""
    train = recipe.train.model_dump(exclude_unset=True)
    for field in ("steps", "tokens", "ramp_steps", "decay_to", "decay", "halves_every", "packing", "packing_count"):
        train.pop(field, None)
    train["compile"] = False  # it would take a minute
    return {
        "seed": recipe.seed,
        "mode": recipe.mode,
        "launcher": recipe.launcher,
        "rollout": {"temperature": recipe.rollout.temperature},
        "engine": recipe.engine.model_dump(exclude_unset=True),
        "sync": {"bucket_megabytes": recipe.sync.bucket_megabytes},
        "train": train,
        "deadlines": recipe.deadlines.model_dump(),
    }


def _validated(fields: dict[str, Any]) -> Recipe:
    try:
        return Recipe.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]["msg"]
        raise InputError(first.removeprefix("Value error, ")) from error


def _dtypes(section: type[Train] | type[EngineConfig]) -> Sequence[str]:
    names = get_args(section.model_fields["dtype"].annotation)
    return [name for name in names if name != AUTO]


def _width(model: Path) -> int:
    from arl.data.model_limits import model_config

    return int(model_config(str(model)).hidden_size)
