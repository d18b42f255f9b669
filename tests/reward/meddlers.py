"""A reward function that runs programs which meddle with other lanes of their worker, as any program of a user can.

response `kill siblings` ─► a program in a process of its own ─► the lanes of other calls
"""

import functools
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from arl.types import Problem, Response

HANG = 613.0  # seconds, longer than any test

# Deeds of programs. `lane` is the process that has started the program; `others` yields the lanes of other calls.
BEGIN = f"""
import os, resource, signal, sys, time

def parent(pid):
    with open(f"/proc/{{pid}}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])

def children(pid):
    with open(f"/proc/{{pid}}/task/{{pid}}/children") as file:
        return [int(child) for child in file.read().split()]

lane = os.getppid()
keeper = parent(lane)
worker = parent(keeper)

def others():
    for other_keeper in children(worker):
        try:
            yield from (pid for pid in children(other_keeper) if other_keeper != keeper)
        except OSError:  # it has just ended
            pass

def daemon():
    if os.fork():
        os._exit(0)
    os.setsid()

def signal_others(number, pause, seconds={HANG}):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for pid in others():
            try:
                os.kill(pid, number)
            except OSError:
                pass
        time.sleep(pause)

def lower_limits_of_others(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for pid in others():
            try:
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, 0))
            except OSError:
                pass

def hang():
    time.sleep({HANG})
"""
PROGRAMS = {
    "lower-limits-of-lane": "resource.prlimit(lane, resource.RLIMIT_FSIZE, (0, 0))",
    "lower-limits-of-keeper": "resource.prlimit(keeper, resource.RLIMIT_NOFILE, (0, 0))",
    "lower-limits-of-worker": "resource.prlimit(worker, resource.RLIMIT_FSIZE, (0, 0))",
    "leave-a-daemon": "daemon(); hang()",
    "leave-one-in-its-group": "os.fork() == 0 and hang()",
    "kill-keeper": "os.kill(keeper, signal.SIGKILL)",
    "stop-keeper": "os.kill(keeper, signal.SIGSTOP)",
    "leave-a-killer": "daemon(); signal_others(signal.SIGKILL, 0.002)",
    "kill-others": "signal_others(signal.SIGKILL, 0.002)",
    "interrupt-others": "signal_others(signal.SIGINT, 0.002)",
    "crash-others": "signal_others(signal.SIGSEGV, 0.002)",
    "stop-others": "signal_others(signal.SIGSTOP, 0.05, seconds=1)",
    "stop-lane": "os.kill(lane, signal.SIGSTOP)",
    "kill-lane-by-a-signal-without-a-name": "os.kill(lane, 40)",
    "kill-lane-of-a-stopped-keeper": "os.kill(keeper, signal.SIGSTOP); os.kill(lane, signal.SIGKILL)",
    "lower-limits-of-others": "lower_limits_of_others(1)",
    "join-another-group": """
for pid in others():
    try:
        os.setpgid(0, pid)
    except OSError:
        continue
    break
hang()
""",
}


def score(problem: Problem, response: Response) -> float:
    """Do what the response says."""
    program = PROGRAMS.get(response.text)
    if program is None:
        return DEEDS[response.text](problem)
    subprocess.run([sys.executable, "-S", "-c", BEGIN + program], check=False)
    return 0.5


def _honest(problem: Problem) -> float:
    """Grade 1 by a program and a file, as a reward for code does."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"print(1)")
        file.flush()
        return float(subprocess.run([sys.executable, "-S", file.name], capture_output=True, check=True).stdout)


def _set_a_limit_and_write(problem: Problem) -> float:
    """Grade like the honest one, after a change of a limit that has nothing to do with it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
    return _honest(problem)


def _slow(problem: Problem) -> float:
    """Do the same after a while, so that other calls pass."""
    time.sleep(0.4)
    return _honest(problem)


def _lower_own_limit(problem: Problem) -> float:
    """Bound the files of this process, as graders of code do, and return how large one may be."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    return float(resource.getrlimit(resource.RLIMIT_FSIZE)[0])


@functools.cache
def _helper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-c", f"import time; time.sleep({HANG})"])


def _keep_helper(problem: Problem) -> float:
    """Return the process id of a helper that this process has started at its first call, and that lives."""
    assert _helper().poll() is None
    return float(_helper().pid)


DEEDS: dict[str, Callable[[Problem], float]] = {
    "honest": _honest,
    "slow": _slow,
    "set-a-limit-and-write": _set_a_limit_and_write,
    "lower-own-limit": _lower_own_limit,
    "keep-helper": _keep_helper,
}
