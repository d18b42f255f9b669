"""Define the commands of the room `report`. Heavy imports live inside them."""

from collections.abc import Callable

COMMANDS: tuple[Callable[..., None], ...] = ()
