"""Define `arl sweep`. Heavy imports live inside the command."""

from collections.abc import Callable

COMMANDS: tuple[Callable[..., None], ...] = ()
