"""A user's launcher: every process of the run has the lowest priority, and is written down."""

import json
from collections.abc import Callable

from arl.launch.base import Command, Process, Resources
from arl.launch.local import LocalLauncher
from arl.types import Response

NICENESS = "7"


class NiceLauncher(LocalLauncher):
    """Starts processes on this machine by `nice`, and writes what it started to started.jsonl beside the logs."""

    async def start(
        self, role: str, command: Command, resources: Resources, on_line: Callable[[str], None] | None = None
    ) -> Process:
        nice = Command(("nice", "-n", NICENESS, *command.argv), command.environment, command.secrets)
        process = await super().start(role, nice, resources, on_line)
        line = {
            "role": role,
            "pid": process.pid,
            "environment": sorted(command.environment),
            "secrets": sorted(command.secrets),
        }
        with (self.logs / "started.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        return process


def priority(problem: object, response: Response) -> float:
    """Score answers of one group differently."""
    return float(len(response.text) % 3)


class WithAnotherStart(LocalLauncher):
    """Its `start` does not take the resources."""

    async def start(self, role: str, command: Command) -> Process:  # type: ignore[override]
        return await super().start(role, command, Resources(threads=1))
