"""Watch a process that runs on another node as one step of a Slurm job.

SlurmProcess: the local srun is its child ─► logs/<role>.log
              lines of the runner on the node (arl.launch.slurm.step_runner) say its pid and its exit code
              messages of srun say that its node has failed
"""

import asyncio
import re
import signal
from collections.abc import Callable
from pathlib import Path

from arl.launch.process import OUTPUT_SECONDS, LocalProcess, PipedChild
from arl.launch.slurm.step_runner import MARK
from arl.launch.spawn import signal_all

# From SIGKILL until srun is ended, too. It is longer than a network takes, and than a kernel takes to free the memory
# of a large process.
REMOTE_SECONDS = 10.0
# At the end of a line that the process may have begun.
RUNNER_LINE = re.compile(rf"{MARK}(?:pid (?P<pid>\d+)|ended (?P<code>-?\d+))$")
NODE_LOST = re.compile(
    r"^srun: error: .*(Node failure on|Requested node configuration is not available|Required node not available)"
)


class SlurmProcess(LocalProcess):
    """Watch a step of a Slurm job.

    Args:
        child: the local srun; signals go through its standard input.
        node: number of its node.
        node_name: as messages show it.
        on_lost_node: is called when srun says that the node cannot be used any more.
    """

    def __init__(
        self,
        role: str,
        child: PipedChild,
        log: Path,
        on_line: Callable[[str], None] | None,
        *,
        node: int,
        node_name: str,
        on_lost_node: Callable[[int], None],
    ) -> None:
        super().__init__(role, child, log, on_line, node, node_name)
        self._on_lost_node = on_lost_node
        self._remote_pid: int | None = None
        self._remote_code: int | None = None
        self._node_has_failed = False

    def __str__(self) -> str:
        if self._remote_pid is None:
            return f"{self.role} (starting on {self._node_name})"
        return super().__str__()

    @property
    def pid(self) -> int:
        return self._remote_pid or 0

    @property
    def exit_code(self) -> int | None:
        return None if self._process.returncode is None else self._remote_code

    async def _wait(self) -> object:
        """Wait for srun and for its output, whose last line is the exit code of the process."""
        code = await self._process.wait()
        if self._remote_code is None:
            await asyncio.wait({self._copying}, timeout=OUTPUT_SECONDS)
        if self._remote_code is None:
            self._remote_code = self._code_without_report(code)
        return self._remote_code

    def _code_without_report(self, code: int) -> int:
        """Return the exit code of a process whose runner was killed as well, from that of srun, 0 if the node fails."""
        if code == 0 or self._node_has_failed:
            return -signal.SIGKILL
        return 128 - code if code > 128 else code

    def _how_it_ended(self) -> str:
        if self._node_has_failed:
            return f"was lost: node {self._node_name} has failed"
        return super()._how_it_ended()

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal through the runner. If SIGKILL does not end it in time, its node cannot be reached."""
        if self._process.returncode is not None:
            return
        assert self._process.stdin is not None
        self._process.stdin.write(b"%d\n" % number)
        if number is signal.SIGKILL:
            asyncio.get_running_loop().call_later(REMOTE_SECONDS, self._end_srun, signal.SIGTERM)

    def _end_srun(self, number: signal.Signals) -> None:
        """End the local srun: Slurm ends the step itself, as soon as it reaches the node."""
        if self._process.returncode is None:
            signal_all(self._process, number)
            asyncio.get_running_loop().call_later(REMOTE_SECONDS, self._end_srun, signal.SIGKILL)

    def _take_line(self, line: str) -> None:
        found = RUNNER_LINE.search(line)
        if found is None:
            if NODE_LOST.search(line):
                self._node_has_failed = True
                self._on_lost_node(self.node)
        elif found["code"]:
            self._remote_code = int(found["code"])
        else:
            self._remote_pid = int(found["pid"])
        super()._take_line(line)
