"""Run a sandbox in a process of another user: it answers each line of programs by a line with the result."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import msgspec

from arl.sandbox import fork_server
from arl.sandbox.base import Program, Result
from arl.sandbox.bubblewrap import BubblewrapSandbox

NOBODY = 65534


class Request(msgspec.Struct):
    """Ask for one run."""

    program: Program
    peer: Program | None = None


class OtherUser:
    """Implement `run` and `close` of a sandbox by one that an ordinary user has opened."""

    def __init__(self, python: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.sandbox.as_user", python],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )

    def run(self, program: Program, peer: Program | None = None) -> Result:
        """See Sandbox."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(msgspec.json.encode(Request(program, peer)) + b"\n")
        self.process.stdin.flush()
        return msgspec.json.decode(self.process.stdout.readline(), type=Result)

    def close(self) -> None:
        """See Sandbox."""
        self.process.communicate(timeout=30)


def ordinary_python() -> str | None:
    """Return an interpreter like this one for an ordinary user; None if it, arl or its packages are not readable."""
    version = sys.version_info[:2]
    files = [fork_server.__file__, sysconfig.get_path("purelib")]
    readable = f"all(os.access(file, os.R_OK) for file in {files})"
    check = f"import os, sys; sys.exit(not (sys.version_info[:2] == {version} and {readable}))"
    for python in (os.path.realpath(sys.executable), "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            command = [python, "-S", "-c", check]
            tried = subprocess.run(
                command, check=False, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", stderr=subprocess.DEVNULL
            )
        except OSError:
            continue
        if tried.returncode == 0:
            return python
    return None


def main() -> None:
    """Become an ordinary user, which can read nothing of root's, and serve the lines of stdin."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    python = Path(sys.argv[1])
    sys._base_executable = str(python)  # type: ignore[attr-defined]
    sys.base_prefix = str(python.parents[1])
    sandbox = BubblewrapSandbox()
    for line in sys.stdin:
        request = msgspec.json.decode(line, type=Request)
        sys.stdout.buffer.write(msgspec.json.encode(sandbox.run(request.program, request.peer)) + b"\n")
        sys.stdout.buffer.flush()
    sandbox.close()


if __name__ == "__main__":
    main()
