"""Say what recipes, rules and messages must know about the world in which a run takes place; see arl.run.world."""

from dataclasses import dataclass
from typing import Literal

WorldName = Literal["wall", "virtual"]


@dataclass(frozen=True, kw_only=True)
class WorldTraits:
    """Declare what kind of world it is. This is known before the world is opened."""

    virtual_time: bool
    """Time jumps to the next timer when nothing can run, and every operation takes the seconds that the recipe's
    section `virtual` gives; threads and other processes have no place in it."""
    one_process: bool
    """Engines, trainer and rewards compute in this process, on the CPU, with one thread."""
    restarts_at_checkpoints: bool
    """A run is built anew from its files at each checkpoint, even if nothing interrupts it. A resumed run then equals
    the uninterrupted one to the last bit, and nothing that changes the schedule may change when it is resumed."""
    start_time: float = 0.0
    """The clock's seconds when a new run begins."""

    @property
    def time_unit(self) -> str:
        """Return the unit of the seconds that people read."""
        return "virtual s" if self.virtual_time else "s"


WALL = WorldTraits(virtual_time=False, one_process=False, restarts_at_checkpoints=False)
VIRTUAL = WorldTraits(virtual_time=True, one_process=True, restarts_at_checkpoints=True)
TRAITS: dict[WorldName, WorldTraits] = {"wall": WALL, "virtual": VIRTUAL}
