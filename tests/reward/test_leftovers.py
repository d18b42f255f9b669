"""The children of a process are killed, except those that are spared or are not its user's."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from arl.reward.leftovers import children_of, kill_children, reap_children

WAITS = [sys.executable, "-S", "-c", "import sys; print(flush=True); sys.stdin.read()"]
HAS_CHILD = f"import subprocess, sys; subprocess.run({WAITS})"


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[bytes]]:
    """Run a process with one child, which waits."""
    argv = [sys.executable, "-S", "-c", HAS_CHILD]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_a_process_is_killed_with_its_parent_still_there(parent: subprocess.Popen[bytes]) -> None:
    kill_children(parent.pid, spare=())
    assert parent.wait(timeout=60) == 0


def test_a_child_that_may_not_be_killed_is_left_alone(
    parent: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be of another user, as one that sudo has started."""
    tried = []

    def refuse(pid: int, number: int) -> None:
        tried.append(pid)
        raise PermissionError

    with monkeypatch.context() as patched:
        patched.setattr("arl.reward.leftovers.os.kill", refuse)
        kill_children(parent.pid, spare=())
    assert len(tried) == 1
    assert parent.poll() is None


def test_what_is_spared_is_neither_killed_nor_reaped(parent: subprocess.Popen[bytes]) -> None:
    others = [pid for pid in children_of(os.getpid()) if pid != parent.pid]
    kill_children(os.getpid(), spare=[parent.pid, *others])
    parent.kill()
    os.waitid(os.P_PID, parent.pid, os.WEXITED | os.WNOWAIT)
    reap_children(spare=[parent.pid, *others])
    assert parent.wait(timeout=60) == -9
