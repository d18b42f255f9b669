"""A user's launcher that lacks what the seam needs."""

from arl.launch.base import Command, Process, Resources
from arl.launch.local import LocalLauncher


class WithAnotherStart(LocalLauncher):
    """Its `start` does not take the resources."""

    async def start(self, role: str, command: Command) -> Process:  # type: ignore[override]
        return await super().start(role, command, Resources(threads=1))
