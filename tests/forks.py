"""Start commands in a tenth of a second, as forks of one process that has imported everything.

Importing torch and transformers takes seconds of CPU time, and most tests of whole runs are about what a run does, not
about how its command is started. They start `arl`, engine servers and ranks here. What a run starts are processes like
any other, and so is a fork: it has a pid, takes signals, and exits with a code. One test of each kind starts the real
command.
"""

import importlib
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from typing import TextIO

from arl.launch.child import PARENT

ROOT = Path(__file__).parent.parent

forks = multiprocessing.get_context("forkserver")
forks.set_forkserver_preload(
    [
        "pytest",
        "arl.cli",
        "arl.run.train",
        "arl.run.virtual",
        "arl.models.tiny",
        "arl.engine.embedded.server",
        "arl.train.rank",
        "arl.train.learner",
    ]
)


class Fork:
    """Do in a fork what `python -m MODULE` does. It has the methods of subprocess.Popen that tests and arl call."""

    def __init__(
        self,
        module: str,
        arguments: list[str],
        env: Mapping[str, str],
        cwd: Path = ROOT,
        output: Connection | None = None,
        errors: Connection | Path | None = None,
    ) -> None:
        """Without `output` or `errors`, it writes where the tests write."""
        given = (module, arguments, dict(env), str(cwd), output, errors)
        self._process = forks.Process(target=_run_module, args=given)
        self._process.start()
        for pipe in {output, errors}:
            if isinstance(pipe, Connection):
                pipe.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it exits; return its exit code, which is negative if a signal killed it."""
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise TimeoutExpired(str(self._process), timeout or 0.0)
        return code


class ForkedCommand(Fork):
    """Start `arl` with `arguments`; its errors are part of its output."""

    def __init__(
        self,
        arguments: list[str],
        cwd: Path,
        env: Mapping[str, str],
        is_apart: bool = False,
        module: str = "arl.cli",
    ) -> None:
        """With `is_apart`, what it writes to its standard error is read from `stderr`."""
        self.stdout, output = pipe()
        self.stderr: TextIO | None = None
        errors = output
        if is_apart:
            self.stderr, errors = pipe()
        super().__init__(module, arguments, env, cwd, output, errors)


def arl(*arguments: str, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> CompletedProcess[str]:
    """Run `arl` to its end."""
    return run_to_end("arl.cli", arguments, cwd, os.environ if env is None else env)


def run_to_end(module: str, arguments: Sequence[str], cwd: Path, env: Mapping[str, str]) -> CompletedProcess[str]:
    """Do what `python -m MODULE` does, to its end."""
    command = ForkedCommand(list(arguments), cwd, env, is_apart=True, module=module)
    assert command.stderr is not None
    with ThreadPoolExecutor(1) as reader:
        errors = reader.submit(command.stderr.read)
        output = command.stdout.read()
    return CompletedProcess(arguments, command.wait(), output, errors.result())


def pipe() -> tuple[TextIO, Connection]:
    """Return the reading end as text, and the writing end as what can be given to a fork."""
    reader, writer = forks.Pipe(duplex=False)
    text = os.fdopen(os.dup(reader.fileno()))
    reader.close()
    return text, writer


def _run_module(
    module: str,
    arguments: list[str],
    env: dict[str, str],
    cwd: str,
    output: Connection | None,
    errors: Connection | Path | None,
) -> None:
    if output is not None:
        os.dup2(output.fileno(), 1)
    if isinstance(errors, Path):
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    elif errors is not None:
        os.dup2(errors.fileno(), 2)
    for pipe in (output, errors):
        if isinstance(pipe, Connection):
            pipe.close()
    os.environ.clear()
    os.environ.update(env)
    parent = multiprocessing.parent_process()
    if parent is not None and env.get(PARENT) == str(parent.pid):
        os.environ[PARENT] = str(os.getppid())  # the process that forks lives as long as the tests
    os.chdir(cwd)
    sys.path.insert(0, cwd)
    sys.argv = [module, *arguments]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code: object = 1
    try:
        importlib.import_module(module).main()
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)
