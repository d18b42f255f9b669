"""Commands that start in a tenth of a second: forks of one process that has imported everything.

Importing torch and transformers takes seconds of CPU time, and most tests of whole runs are about what a run does, not
about how its command is started. They start `arl` here. The processes that the run starts are processes like any other,
and so is the fork: it has a pid, takes signals, and exits with a code. One test of each kind of run starts the real
command.
"""

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import CompletedProcess
from typing import TextIO

ROOT = Path(__file__).parent.parent

forks = multiprocessing.get_context("forkserver")
forks.set_forkserver_preload(
    ["pytest", "arl.engine.embedded.server", "arl.run.train", "arl.run.virtual", "arl.models.tiny", "arl.cli"]
)


class ForkedCommand:
    """Start `arl` with `arguments`, to be handled as a subprocess.Popen; its errors are part of its output."""

    def __init__(self, arguments: list[str], cwd: Path, env: Mapping[str, str], is_apart: bool = False) -> None:
        """With `is_apart`, what it writes to its standard error is read from `stderr`."""
        self.stdout, output = _pipe()
        self.stderr: TextIO | None = None
        errors = output
        if is_apart:
            self.stderr, errors = _pipe()
        given = (arguments, str(cwd), dict(env), output, errors)
        self._process = forks.Process(target=_be_the_command, args=given)
        self._process.start()
        output.close()
        errors.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int:
        """Wait until it exits; return its exit code, which is negative if a signal killed it."""
        self._process.join()
        code = self._process.exitcode
        assert code is not None
        return code


def arl(*arguments: str, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> CompletedProcess[str]:
    """Run `arl` to its end."""
    command = ForkedCommand(list(arguments), cwd, os.environ if env is None else env, is_apart=True)
    assert command.stderr is not None
    with ThreadPoolExecutor(1) as reader:
        errors = reader.submit(command.stderr.read)
        output = command.stdout.read()
    return CompletedProcess(arguments, command.wait(), output, errors.result())


def _pipe() -> tuple[TextIO, Connection]:
    """Return the reading end as text, and the writing end as what can be given to a fork."""
    reader, writer = forks.Pipe(duplex=False)
    text = os.fdopen(os.dup(reader.fileno()))
    reader.close()
    return text, writer


def _be_the_command(
    arguments: list[str], cwd: str, env: dict[str, str], output: Connection, errors: Connection
) -> None:
    """Do in a fork what `python -m arl.cli` does."""
    os.dup2(output.fileno(), 1)
    os.dup2(errors.fileno(), 2)
    output.close()
    errors.close()
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.path.insert(0, cwd)
    sys.argv = ["arl", *arguments]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code = 1
    try:
        from arl.cli import main

        main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
