"""Watch a process that runs on another node as one step of a Slurm job.

SlurmProcess: the local srun is its child ─► logs/<role>.log
              lines of the runner on the node (arl.launch.slurm.step_runner) say its pid and its exit code
              messages of srun say that its node has failed
"""

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

from arl.launch.process import LocalProcess, PipedChild
from arl.launch.process_state import RUNS, describe_exit
from arl.launch.slurm.step_runner import MARK
from arl.launch.spawn import signal_all

# From SIGKILL until srun is ended, too. It is longer than a network takes, and than a kernel takes to free the memory
# of a large process.
REMOTE_SECONDS = 10.0
# At the end of a line that the process may have begun, or have printed itself.
RUNNER_LINE = re.compile(rf"{MARK}(?:pid (?P<pid>[0-9]{{1,9}})|ended (?P<code>-?[0-9]{{1,9}}))$")
NODE_LOST = re.compile(
    r"^srun: error: .*(Node failure on|Requested node configuration is not available|Required node not available)"
)


class SlurmProcess(LocalProcess):
    """Watch a step of a Slurm job; see arl.launch.base.Process.

    Args:
        child: the local srun.
        node: number of its node.
        node_name: as messages show it.
        stdin: descriptor of a pipe to the standard input of srun; it is closed when the process has ended.
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
        stdin: int,
        on_lost_node: Callable[[int], None],
    ) -> None:
        super().__init__(role, child, log, on_line)
        self._node = node
        self._node_name = node_name
        self._stdin: int | None = stdin
        self._on_lost_node = on_lost_node
        self._remote_pid: int | None = None
        self._remote_code: int | None = None
        self._node_has_failed = False
        self._copying.add_done_callback(lambda _: self._close_stdin())

    def __str__(self) -> str:
        if self._remote_pid is None:
            return f"{self.role} (starting on {self._node_name})"
        return f"{self.role} (pid {self._remote_pid} on {self._node_name})"

    @property
    def node(self) -> int:
        return self._node

    @property
    def pid(self) -> int:
        return self._remote_pid or 0

    @property
    def exit_code(self) -> int | None:
        code = self._process.returncode
        if code is None:
            return None
        if self._remote_code is not None:
            return self._remote_code
        if not self._copying.done():  # its exit code may be among the output that is still to be read
            return None
        return self._code_without_report(code)

    def _code_without_report(self, code: int) -> int:
        """Return the exit code of a process whose runner has not said any, from that of srun."""
        if code == 0 or self._node_has_failed:
            return -signal.SIGKILL
        return 128 - code if 128 < code < 128 + signal.NSIG else code

    async def state(self) -> str:
        return RUNS  # as far as it is known here

    def _how_it_ended(self) -> str:
        if self._remote_code is not None:
            return super()._how_it_ended()
        if self._node_has_failed:
            return f"was lost: node {self._node_name} has failed"
        code = self._process.returncode
        if code == 0:
            return f"was killed together with its runner on {self._node_name}"
        assert code is not None
        return describe_exit(self._code_without_report(code))

    async def ended(self) -> str:
        words = await super().ended()
        self._copying.cancel()
        return words

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal through the runner. If SIGKILL does not end it in time, its node cannot be reached."""
        if self._stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # srun has ended
                os.write(self._stdin, b"%d\n" % number)
        if number is signal.SIGKILL:
            asyncio.get_running_loop().call_later(REMOTE_SECONDS, self._end_srun, signal.SIGTERM)

    def _end_srun(self, number: signal.Signals) -> None:
        """End the local srun: Slurm ends the step itself, as soon as it reaches the node."""
        if self._process.returncode is None:
            signal_all(self._process, number)
            asyncio.get_running_loop().call_later(REMOTE_SECONDS, self._end_srun, signal.SIGKILL)

    def _close_stdin(self) -> None:
        if self._stdin is not None:
            os.close(self._stdin)
            self._stdin = None

    def _take_line(self, line: str) -> None:
        found = RUNNER_LINE.search(line)
        if found is None:
            if NODE_LOST.search(line):
                self._node_has_failed = True
                self._on_lost_node(self._node)
        elif found["code"]:
            self._remote_code = int(found["code"])
        elif self._remote_pid is None:  # it comes first, because the process may print such lines, too
            self._remote_pid = int(found["pid"])
        super()._take_line(line)
