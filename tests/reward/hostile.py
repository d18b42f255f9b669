"""Reward functions for tests, some honest; `obey` does what the response says, among it the worst things."""

import array
import decimal
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import UserString
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from arl.launch.frames import frame
from arl.reward.messages import LONGEST_NAME, MOST_PARTS, Answer, Verdict
from arl.types import Problem, Response
from tests.reward.strange import Mute, Stubborn, Unlike, circular

HANG = 613.0  # seconds, longer than any test


def length(problem: Problem, response: Response) -> float:
    return float(len(response.text))


def parts(problem: Problem, response: Response) -> dict[str, float]:
    return {"correct": float(response.text == problem.answer), "format": 1.0}


def obey(problem: Problem, response: Response) -> Any:
    """Do what the response says; metadata["directory"] is where to leave notes."""
    return DEEDS[response.text.split()[0]](problem, response)


def _tries(problem: Problem) -> Path:
    return Path(problem.metadata["directory"]) / "tries"


def _honest(problem: Problem, response: Response) -> float:
    """Return the number in the response, 1 if there is none."""
    return float(response.text.partition(" ")[2] or 1)


def _raise(problem: Problem, response: Response) -> float:
    raise ValueError("cannot judge\nthis")


def _raise_once(problem: Problem, response: Response) -> float:
    """Fail at the first try of each response."""
    note = _tries(problem).with_name(response.text.replace(" ", "-"))
    if not note.exists():
        note.touch()
        raise ValueError("not yet")
    return 0.5


def _hang(problem: Problem, response: Response) -> float:
    if problem.metadata:
        with _tries(problem).open("a") as file:
            file.write("x")
    time.sleep(HANG)
    return 1.0


def _wait(problem: Problem, response: Response) -> float:
    """Report that it runs, and wait until the test says go, each by a FIFO."""
    tries = _tries(problem)
    tries.write_text("x")
    tries.with_name("go").read_text()
    return 0.5


def _take_a_while(problem: Problem, response: Response) -> float:
    time.sleep(0.4)  # longer than a worker's first patience
    return 1.0


def _burn(problem: Problem, response: Response) -> float:
    while True:
        pass


def _hang_through_signals(problem: Problem, response: Response) -> float:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    return _hang(problem, response)


def _exit(problem: Problem, response: Response) -> float:
    os._exit(9)


def _system_exit(problem: Problem, response: Response) -> float:
    sys.exit("good-bye")


def _segfault(problem: Problem, response: Response) -> float:
    os.kill(os.getpid(), signal.SIGSEGV)
    return 1.0


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
    return 0.25


def _memory(problem: Problem, response: Response) -> float:
    hoard = []
    while True:
        hoard.append(bytearray(1 << 24))


def _fork(problem: Problem, response: Response) -> float:
    """Return twice, and leave sleepers behind in the same and in another session."""
    if os.fork() == 0:
        return 1000.0
    for new_session in (False, True):
        _start_sleeper(new_session)
    return 0.75


def _start_sleeper(new_session: bool) -> None:
    command = [sys.executable, "-S", "-c", f"import time; time.sleep({HANG})"]
    subprocess.Popen(command, start_new_session=new_session)


def _leave_and_hang(problem: Problem, response: Response) -> float:
    _start_sleeper(new_session=True)
    return _hang(problem, response)


def _shout(problem: Problem, response: Response) -> float:
    print("loud" * (1 << 18))
    return 1.0


def _close_everything(problem: Problem, response: Response) -> float:
    os.closerange(0, 1024)
    return 1.0


def _write_everywhere(problem: Problem, response: Response) -> float:
    """Write nonsense to every file descriptor that can be written to."""
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b"\0\0\0\x01garbage")
        except OSError:
            continue
    return 1.0


def _kill_worker(problem: Problem, response: Response) -> float:
    os.kill(_worker(), signal.SIGKILL)
    time.sleep(HANG)
    return 1.0


def _worker() -> int:
    """Return the process id of the worker of this lane, which is the parent of its keeper."""
    stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def _epolls(problem: Problem, response: Response) -> float:
    """Return how many epoll descriptors this lane has: its worker's, if it has one."""
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return float(sum("eventpoll" in os.readlink(link) for link in links if os.path.exists(link)))


DAEMON = f"""
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.kill(int(sys.argv[1]), signal.SIGKILL)
        time.sleep({HANG})
    os._exit(0)
time.sleep({HANG})
"""


def _kill_worker_from_a_daemon(problem: Problem, response: Response) -> float:
    """Run a program that leaves a process in a session of its own, which kills the worker and lives on."""
    subprocess.run([sys.executable, "-S", "-c", DAEMON, str(_worker())], check=False)
    return 1.0


def _descriptors(problem: Problem, response: Response) -> float:
    """Return how many sockets a started program inherits."""
    script = (
        "import os; found = [f'/proc/self/fd/{n}' for n in (0, *range(3, 64))]; "
        "print(sum('socket' in os.readlink(name) for name in found if os.path.exists(name)))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, check=True, close_fds=False)
    return float(done.stdout)


FORGERY = b"".join(frame(Answer(number, Verdict(777.0))) for number in range(200))  # answers to calls of everybody
FORGE = f"""
import os
for descriptor in [0, *range(3, 64)]:
    try:
        os.write(descriptor, {FORGERY!r})
    except OSError:
        continue
"""


def _forge(problem: Problem, response: Response) -> float:
    """Run a program that writes verdicts to all that it inherits, as subprocess.run starts it."""
    subprocess.run([sys.executable, "-S", "-c", FORGE], check=False)
    return 0.5


def _forge_by_spawn(problem: Problem, response: Response) -> float:
    pid = os.posix_spawn(sys.executable, [sys.executable, "-S", "-c", FORGE], os.environ)
    os.waitpid(pid, 0)
    return 0.5


def _forge_by_fork(problem: Problem, response: Response) -> float:
    """Run what the policy wrote in a process of multiprocessing, as graders of code do."""
    process = multiprocessing.get_context("fork").Process(target=exec, args=(FORGE, {}))
    process.start()
    process.join()
    return 0.5


def _forge_from_a_daemon(problem: Problem, response: Response) -> float:
    """Leave a process in a session of its own, which writes verdicts, and goes on."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            exec(FORGE, {})
            time.sleep(HANG)
        os._exit(0)
    return 0.5


def _ask(problem: Problem, response: Response) -> float:
    """Run a program that reads its input, as an answer that calls input() does."""
    done = subprocess.run([sys.executable, "-S", "-c", "input()"], stderr=subprocess.DEVNULL, check=False)
    return 0.5 if done.returncode else 0.0


UNBLOCK = """
import fcntl, os
for descriptor in (0, 1, 2):
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_NONBLOCK)
"""


def _unblock(problem: Problem, response: Response) -> float:
    """Run a program that makes its standard streams non-blocking."""
    subprocess.run([sys.executable, "-S", "-c", UNBLOCK], check=True)
    return 0.5


def _stream_flags(problem: Problem, response: Response) -> float:
    """Return how many of the standard streams that a program inherits are non-blocking."""
    script = "import os, sys; sys.exit(sum(not os.get_blocking(descriptor) for descriptor in (0, 1, 2)))"
    return float(subprocess.run([sys.executable, "-S", "-c", script], check=False).returncode)


def _kill_group(problem: Problem, response: Response) -> float:
    os.killpg(0, signal.SIGKILL)
    return 1.0


def _raising(error: Callable[[], BaseException]) -> Callable[[Problem, Response], float]:
    def deed(problem: Problem, response: Response) -> float:
        raise error()

    return deed


def _overflow(problem: Problem, response: Response) -> float:
    return _overflow(problem, response)


QUICK_ERRORS: dict[str, Callable[[Problem, Response], Any]] = {  # no grade, at once
    "kill-group": _kill_group,
    "mute": _raising(Mute),
    "unlike": _raising(Unlike),
    "interrupt": _raising(KeyboardInterrupt),
    "circular": _raising(circular),
    "long-message": _raising(lambda: ValueError("x" * 50_000_000)),
    "long-type": _raising(type("E" * 100_000, (Exception,), {})),
    "no-characters": _raising(lambda: ValueError("\ud800 \x1b[2J\0")),
    "many-causes": _raising(lambda: ExceptionGroup("x" * 10_000, [ValueError("y" * 10_000)] * 100)),
    "overflow": _overflow,
    "stubborn": lambda problem, response: Stubborn(),
    "stubborn-part": lambda problem, response: {"correct": Stubborn()},
    "text-number": lambda problem, response: "0.5",
    "user-string": lambda problem, response: UserString("0.5"),
    "array-of-text": lambda problem, response: array.array("b", b"12"),
    "numpy-text": lambda problem, response: np.array("0.5"),
    "numpy-bytes": lambda problem, response: np.bytes_(b"0.5"),
    "two-numbers": lambda problem, response: np.array([0.5, 0.5]),
    "very-huge-integer": lambda problem, response: 10**5000,
    "infinite": lambda problem, response: float("-inf"),
    "too-large": lambda problem, response: 1e300,
    "no-decimal": lambda problem, response: decimal.Decimal("sNaN"),
    "nan-part": lambda problem, response: {"correct": 1.0, "format": float("nan")},
    "number-name": lambda problem, response: {1: 1.0},
    "half-a-name": lambda problem, response: {"\ud800": 1.0},
    "empty-name": lambda problem, response: {"": 1.0},
    "two-lines-name": lambda problem, response: {"a\nb": 1.0},
    "long-name": lambda problem, response: {"x" * 10_000: 1.0},
    "large-sum": lambda problem, response: {str(number): 1e9 for number in range(3)},
}
HALVES: dict[str, Callable[[Problem, Response], Any]] = {  # strange, and graded 0.5
    "forge": _forge,
    "forge-by-spawn": _forge_by_spawn,
    "forge-by-fork": _forge_by_fork,
    "forge-from-a-daemon": _forge_from_a_daemon,
    "ask": _ask,
    "unblock": _unblock,
    "decimal": lambda problem, response: decimal.Decimal("0.5"),
    "fraction": lambda problem, response: Fraction(1, 2),
    "numpy-number": lambda problem, response: np.float16(0.5),
    "numpy-array": lambda problem, response: np.array([[0.5]]),
    "numpy-boolean": lambda problem, response: {"correct": np.bool_(True), "format": np.int8(-1), "half": 0.5},
    "two-parts": lambda problem, response: {"correct": True, "format": -0.5},
}
DEEDS: dict[str, Callable[[Problem, Response], Any]] = {
    "honest": _honest,
    "raise": _raise,
    "raise-once": _raise_once,
    "hang": _hang,
    "wait": _wait,
    "take-a-while": _take_a_while,
    "burn": _burn,
    "hang-through-signals": _hang_through_signals,
    "exit": _exit,
    "system-exit": _system_exit,
    "segfault": _segfault,
    "alarm": _alarm,
    "memory": _memory,
    "fork": _fork,
    "leave-and-hang": _leave_and_hang,
    "shout": _shout,
    "close-everything": _close_everything,
    "write-everywhere": _write_everywhere,
    "kill-worker": _kill_worker,
    "kill-worker-from-a-daemon": _kill_worker_from_a_daemon,
    "descriptors": _descriptors,
    "epolls": _epolls,
    "stream-flags": _stream_flags,
    **QUICK_ERRORS,
    **HALVES,
    "largest": lambda problem, response: {f"{i:03}" + "😀" * (LONGEST_NAME - 3): 1.0 for i in range(MOST_PARTS)},
    "nan": lambda problem, response: float("nan"),
    "text": lambda problem, response: "very good",
    "nothing": lambda problem, response: None,
    "no-parts": lambda problem, response: {},
    "many-parts": lambda problem, response: {f"part {i}": 1.0 for i in range(100_000)},
    "complex": lambda problem, response: 1j,
    "huge-integer": lambda problem, response: 10**400,
}
