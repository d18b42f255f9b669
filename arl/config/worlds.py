"""List the worlds in which a run can take place, with what recipes, rules and messages must know about each.

    recipe.world ─► WORLDS, or a user's module:attribute ─► WorldTraits

A world itself is a class that opens everything a run needs: see arl.run.world.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from arl.config.imports import import_attribute
from arl.errors import RecipeError

WORLDS: Mapping[str, str] = {
    "wall": "arl.run.wall:WallWorld",
    "virtual": "arl.run.virtual:VirtualWorld",
}


@dataclass(frozen=True, kw_only=True)
class WorldTraits:
    """Declare what kind of world it is. This is known before the world is opened."""

    virtual_time: bool
    """Time jumps to the next timer when nothing can run; threads and other processes have no place in it."""
    one_process: bool
    """Engines, trainer and rewards compute in this process, on the CPU, with one thread."""
    restarts_at_checkpoints: bool
    """A run is built anew from its files at each checkpoint, even if nothing interrupts it. A resumed run then equals
    the uninterrupted one to the last bit, and nothing that changes the schedule may change when it is resumed."""
    recipe_costs: bool
    """Every operation takes the seconds that the recipe's section `virtual` gives; a replay can change them."""
    start_time: float = 0.0
    """The clock's seconds when a new run begins."""

    @property
    def time_unit(self) -> str:
        """Return the unit of the seconds that people read."""
        return "virtual s" if self.virtual_time else "s"


WALL = WorldTraits(
    virtual_time=False,
    one_process=False,
    restarts_at_checkpoints=False,
    recipe_costs=False,
)
VIRTUAL = WorldTraits(
    virtual_time=True,
    one_process=True,
    restarts_at_checkpoints=True,
    recipe_costs=True,
)
_BUILT_IN = {"wall": WALL, "virtual": VIRTUAL}  # known without an import of torch


def world_traits(name: str) -> WorldTraits:
    """Return the traits of the world that a recipe names.

    Raises:
        RecipeError: there is no such world, or it declares no traits.
    """
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    world = import_attribute(name, "world", WORLDS)
    traits = getattr(world, "traits", None)
    if not isinstance(traits, WorldTraits):
        raise RecipeError(
            f"world {name!r}: lacks the attribute `traits`, a WorldTraits, or has another type there; see "
            f"{WORLDS['virtual']} for a complete one"
        )
    return traits
