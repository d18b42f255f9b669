"""Programs that attack the sandbox get nothing, and leave nothing behind."""

import os
import time
from pathlib import Path

import pytest

from arl.sandbox.base import Program
from tests.processes import below
from tests.sandbox.attacks import ATTACKS, attack
from tests.sandbox.conftest import Opened

HONEST = Program(
    code="""
import os, sys, threading
print(sys.stdin.read(), sorted(os.listdir(".")), sorted(os.listdir("/")), os.listdir("/proc"))
print(len({*"abc"}), list({*"arl"}), json.dumps([1]) if (json := __import__("json")) else 0, threading.active_count())
print(sorted(fd for fd in range(100) if os.path.exists(f"/dev/fd/{fd}")), sorted(os.environ), os.umask(0))
""",
    stdin="input",
    files={"data/a": b"1"},
)


def left(pid: int) -> tuple[int, int]:
    """Count the processes below a process, and its descriptors."""
    return len(below(pid)), len(os.listdir(f"/proc/{pid}/fd"))


def settled(pid: int, before: tuple[int, int]) -> tuple[int, int]:
    """Count what is left when the watchers of ended programs, which have nothing to do any more, are gone."""
    end = time.monotonic() + 10
    while left(pid) != before and time.monotonic() < end:
        """The kernel takes their namespaces down."""
    return left(pid)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_gets_nothing_and_leaves_nothing(any_sandbox: Opened, name: str, tmp_path: Path) -> None:
    sandbox, pid, others = any_sandbox
    secret = tmp_path / "secret"
    secret.write_text("secret")
    honest = sandbox.run(HONEST)
    before = settled(pid, (others + 2, len(os.listdir(f"/proc/{pid}/fd"))))
    program, outcome = attack(name, str(secret))
    result = sandbox.run(program)
    assert (result.outcome, "BROKEN" in result.stdout) == (outcome, False), result
    again = sandbox.run(HONEST)
    assert (again.outcome, again.stdout, again.stderr) == ("done", honest.stdout, honest.stderr)
    assert settled(pid, before) == before
