"""Watch a process that runs on another node as one step of a Slurm job.

SlurmProcess: the local srun is its child ─► logs/<role>.log
              lines of the runner on the node (arl.launch.slurm.step_runner) say its pid and its exit code
              messages of srun say that its node has failed
"""

import asyncio
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

from arl.launch.process import LocalProcess, PipedChild
from arl.launch.process_state import RUNS, STATE_SECONDS, UNREACHABLE, describe_exit, describe_state, state_of
from arl.launch.slurm.step_runner import MARK, STATE
from arl.launch.spawn import signal_all

# From SIGKILL until srun is ended, too. It is longer than a network takes, and than a kernel takes to free the memory
# of a large process.
REMOTE_SECONDS = 10.0
# At the end of a line that the process may have begun, or have printed itself.
RUNNER_LINE = re.compile(
    rf"{MARK}(?:pid (?P<pid>[0-9]{{1,9}})|ended (?P<code>-?[0-9]{{1,9}})|state (?P<state>[a-z-]{{1,20}}))$"
)
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
        self._state: asyncio.Future[str] | None = None  # the next answer of the runner
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
        return 0 if self._remote_pid is None else self._remote_pid

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
        of_srun = describe_state(state_of(self._process.pid))
        if of_srun != RUNS:
            return f"{UNREACHABLE}: its srun (pid {self._process.pid}) {of_srun}"
        if self._state is None or self._state.done():
            self._state = asyncio.get_running_loop().create_future()
        self._say(STATE)
        try:
            async with asyncio.timeout(STATE_SECONDS):
                return describe_state(await asyncio.shield(self._state))  # others may await the same answer
        except TimeoutError:
            return f"{UNREACHABLE}: {self._node_name}, or its runner there, does not answer"

    def beat(self) -> None:
        """Let the runner know that the controller lives."""
        self._say("")

    def _how_it_ended(self) -> str:
        if self._remote_code is None and self._node_has_failed:
            return f"was lost: node {self._node_name} has failed"
        if self._remote_code is None and self._process.returncode == 0:
            return f"was killed together with its runner on {self._node_name}"
        if self._remote_code is None and self._process.returncode is not None:
            return describe_exit(self._code_without_report(self._process.returncode))
        return super()._how_it_ended()

    async def ended(self) -> str:
        words = await super().ended()
        self._copying.cancel()
        return words

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal through the runner. If SIGKILL does not end it in time, its node cannot be reached."""
        self._say(str(int(number)))
        if number is signal.SIGKILL and self._process.returncode is None:
            asyncio.get_running_loop().call_later(REMOTE_SECONDS, self._give_up)

    def _give_up(self) -> None:
        """End the local srun: Slurm ends the step itself, as soon as it reaches the node."""
        if self._process.returncode is None:
            signal_all(self._process, signal.SIGTERM)
            asyncio.get_running_loop().call_later(REMOTE_SECONDS, self._give_up_srun)

    def _give_up_srun(self) -> None:
        if self._process.returncode is None:
            signal_all(self._process, signal.SIGKILL)

    def _say(self, words: str) -> None:
        """Write a line to the runner, if srun still takes any."""
        if self._stdin is None:
            return
        try:
            os.write(self._stdin, f"{words}\n".encode())
        except (BrokenPipeError, BlockingIOError):  # it has ended, or does not read because its node is cut off
            return

    def _close_stdin(self) -> None:
        if self._stdin is not None:
            os.close(self._stdin)
            self._stdin = None

    def _take_line(self, line: str) -> None:
        found = RUNNER_LINE.search(line)
        if found is not None:
            self._take_report(found)
        elif NODE_LOST.search(line):
            self._node_has_failed = True
            self._on_lost_node(self._node)
        super()._take_line(line)

    def _take_report(self, found: re.Match[str]) -> None:
        """Note what the runner says. Its pid comes first, because the process may print such lines, too."""
        if found["pid"] and self._remote_pid is None:
            self._remote_pid = int(found["pid"])
        elif found["code"]:
            self._remote_code = int(found["code"])
        elif found["state"] and self._state is not None and not self._state.done():
            self._state.set_result(found["state"])
