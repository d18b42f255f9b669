"""Define the Sandbox seam: where programs run that a model wrote.

    reward or env ─► Program ─► Sandbox.run ─► Result
                                 ├─ bubblewrap: namespaces of this machine
                                 ├─ fusion, e2b: a service over HTTP
                                 └─ unsafe: plain processes, only where the recipe says `unsafe: true`

Every call blocks. An env makes it by `await asyncio.to_thread(…)`, which virtual time does in place.
`arl.sandbox.current` opens the sandbox of the recipe, once in each process.
"""

from collections.abc import Mapping
from typing import Literal, Protocol

from msgspec import Struct

Outcome = Literal["done", "error", "time", "memory", "output"]
"""How a program ended: with exit code 0, with another one or by a signal, or beyond a limit."""

PEER_READ = "ARL_PEER_READ"  # environment variable: file descriptor from which a program reads what its peer writes
PEER_WRITE = "ARL_PEER_WRITE"
RESTARTED = "(the interpreter had ended: this is a new one, without the variables)\n"  # in stderr of a Shell
MAX_OUTPUT = 1 << 20  # bytes of each stream; a program that writes more is ended


class Program(Struct, frozen=True, kw_only=True):
    """Say what runs, and within which limits. It starts in an empty folder that holds `files` alone."""

    code: str = ""  # Python, run as a script
    command: tuple[str, ...] = ()  # in place of code: a program of the machine with its arguments
    files: Mapping[str, bytes] = {}  # path below the working folder -> content
    stdin: str = ""
    seconds: float = 10.0  # of the clock; the CPU time that a program may use is bounded by it, too
    memory_mb: int = 512


class Result(Struct, frozen=True, kw_only=True):
    """Report how a program ended, and what it wrote."""

    outcome: Outcome
    exit_code: int = 0  # negative: the signal that ended it
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0  # of the clock


class Shell(Protocol):
    """Keep one Python interpreter, whose variables live from one call to the next."""

    def run(self, code: str) -> Result:
        """Run code, and return what it printed; as in a notebook, the value of a last expression is printed too.

        Code beyond a limit ends the interpreter. The next call starts another one, and says so in `stderr`.
        """

    def close(self) -> None:
        """End the interpreter."""


class Sandbox(Protocol):
    """Run programs apart from everything of this machine and from each other. Threads may share it.

    Raises (from every method):
        SandboxError: the sandbox itself failed, and not the program.
    """

    def run(self, program: Program, peer: Program | None = None) -> Result:
        """Run a program to its end, and return how it ended. Nothing that it started or wrote is left.

        Args:
            peer: runs at the same time, apart from the first. The two share two pipes and nothing else: each finds the
                file descriptors in the environment variables PEER_READ and PEER_WRITE. It is ended with the first one.
        """

    def write(self, path: str, content: bytes) -> None:
        """Put a file into the working folder of every later run and shell."""

    def shell(self, *, seconds: float, memory_mb: int) -> Shell:
        """Start a persistent interpreter, with so many seconds for each call."""

    def close(self) -> None:
        """End everything that runs."""
