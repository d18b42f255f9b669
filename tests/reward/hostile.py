"""Reward functions for tests: `obey` does what the first word of the response says, honest or not."""

import decimal
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from arl.types import Problem, Response

HANG = 613.0  # seconds, longer than any test


def parts(problem: Problem, response: Response) -> dict[str, float]:
    return {"correct": float(response.text == problem.answer), "format": 1.0}


_started: list[bool] = []


def start_slowly(problem: Problem, response: Response) -> Any:
    """Use 0.2 s of a core, and 1.4 s more in the first call of a process, as an import does; then obey."""
    end = time.process_time() + (0.2 if _started else 1.6)
    while time.process_time() < end:
        pass
    _started.append(True)
    return obey(problem, response)


def threads(problem: Problem, response: Response) -> dict[str, float]:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {name.partition("_")[0]: float(os.environ[name]) for name in names}


def obey(problem: Problem, response: Response) -> Any:
    """Do what the response says; metadata["directory"] is where to leave notes."""
    return DEEDS[response.text.split()[0]](problem, response)


def _raise(problem: Problem, response: Response) -> float:
    raise ValueError("cannot judge\nthis")


def _raise_once(problem: Problem, response: Response) -> float:
    note = Path(problem.metadata["directory"]) / response.text.replace(" ", "-")
    if not note.exists():
        note.touch()
        raise ValueError("not yet")
    return 0.5


def _hang(problem: Problem, response: Response) -> float:
    """Tell the test, which may read a FIFO, that it runs; then hang, whatever signals come."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    if problem.metadata:
        with (Path(problem.metadata["directory"]) / "tries").open("a") as file:
            file.write("x")
    time.sleep(HANG)
    return 1.0


def _burn(problem: Problem, response: Response) -> float:
    while True:
        pass


def _signal_itself(number: int) -> Callable[[Problem, Response], None]:
    return lambda problem, response: os.kill(os.getpid(), number)


def _kill_keeper(problem: Problem, response: Response) -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(HANG)


def _shout(problem: Problem, response: Response) -> float:
    print("loud" * (1 << 18))
    return 0.5


def _alarm(problem: Problem, response: Response) -> float:
    """Count on an alarm in the main thread, as math-verify does, and leave one behind."""

    def stop(number: int, frame: object) -> None:
        raise TimeoutError("an alarm of its own")

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    try:
        time.sleep(HANG)
    except TimeoutError:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, 3.0)
    return 0.5


def _memory(problem: Problem, response: Response) -> float:
    hoard = []
    while True:
        hoard.append(bytearray(1 << 24))


def _leave_and_hang(problem: Problem, response: Response) -> float:
    command = [sys.executable, "-S", "-c", f"import time; time.sleep({HANG})"]
    subprocess.Popen(command, start_new_session=True)
    return _hang(problem, response)


def _fork(problem: Problem, response: Response) -> float:
    """Return twice."""
    return 0.5 if os.fork() else 1000.0


def _daemonize(problem: Problem, response: Response) -> float:
    """Leave a process in a session of its own, and go on."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(HANG)
        os._exit(0)
    os.wait()
    return 0.5


def _close_everything(problem: Problem, response: Response) -> float:
    os.closerange(0, 1024)
    return 1.0


def _ask(problem: Problem, response: Response) -> float:
    """Run a program that reads its input, as an answer that calls input() does."""
    done = subprocess.run([sys.executable, "-S", "-c", "input()"], stderr=subprocess.DEVNULL, check=False)
    return 0.5 if done.returncode else 0.0


@functools.cache
def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1)


def _overflow(problem: Problem, response: Response) -> float:
    return _overflow(problem, response)


def _returning(value: Any) -> Callable[[Problem, Response], Any]:
    return lambda problem, response: value


NO_NUMBERS: dict[str, Any] = {
    "nan": float("nan"),
    "text": "0.5",
    "nothing": None,
    "two-numbers": np.array([0.5, 0.5]),
    "no-parts": {},
    "nan-part": {"correct": 1.0, "format": float("nan")},
    "number-name": {1: 1.0},
    "large-sum": {str(number): 1e9 for number in range(3)},
}
HALVES: dict[str, Callable[[Problem, Response], Any]] = {  # strange, and graded 0.5
    "alarm": _alarm,
    "ask": _ask,
    "daemonize": _daemonize,
    "fork": _fork,
    "raise-once": _raise_once,
    "shout": _shout,
    "use-pool": lambda problem, response: _pool().submit(float, 0.5).result(),
    "decimal": _returning(decimal.Decimal("0.5")),
    "numpy-array": _returning(np.array([[0.5]])),
    "two-parts": _returning({"correct": np.bool_(True), "format": -0.5}),
}
DEEDS: dict[str, Callable[[Problem, Response], Any]] = {
    "honest": lambda problem, response: float(response.text.partition(" ")[2] or 1),
    "raise": _raise,
    "overflow": _overflow,
    "hang": _hang,
    "burn": _burn,
    "leave-and-hang": _leave_and_hang,
    "exit": lambda problem, response: os._exit(9),
    "system-exit": lambda problem, response: sys.exit("good-bye"),
    "segfault": _signal_itself(signal.SIGSEGV),
    "stop": _signal_itself(signal.SIGSTOP),
    "kill-group": lambda problem, response: os.killpg(0, signal.SIGKILL),
    "kill-keeper": _kill_keeper,
    "memory": _memory,
    "close-everything": _close_everything,
    **{name: _returning(value) for name, value in NO_NUMBERS.items()},
    **HALVES,
}
