"""A process hears which of its limits others have lowered, and not what it has set itself, or what was raised."""

import resource
import subprocess
import sys
from collections.abc import Iterator

import pytest

from arl.reward.limits import NUMBERS

LARGE = 1 << 40  # in place of no limit
WATCH = """
import resource, sys
from arl.reward.limits import LimitWatch

watch = LimitWatch()
watch.allow_own_changes()
print(flush=True)
for line in sys.stdin:
    if line.strip():
        number, soft, hard = map(int, line.split())
        resource.setrlimit(number, (soft, hard))
    print(*watch.lowered(), flush=True)
"""


class Watching:
    """Talk to a process that watches its limits."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid
        self._answer()

    def lowered(self, own_change: str = "") -> list[str]:
        """Return what it says, after a change of its own: the number of a limit, the soft and the hard one."""
        assert self._process.stdin is not None
        self._process.stdin.write(own_change + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> list[str]:
        assert self._process.stdout is not None
        return self._process.stdout.readline().split()


@pytest.fixture
def watching() -> Iterator[Watching]:
    argv = [sys.executable, "-c", WATCH]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Watching(process)


def less(soft: int) -> int:
    return LARGE if soft == resource.RLIM_INFINITY else soft - 1


def test_each_limit_that_another_process_lowers_is_named_until_it_is_raised_again(watching: Watching) -> None:
    for number, name in NUMBERS.items():
        soft, hard = resource.prlimit(watching.pid, number)
        if soft == 0:
            continue
        resource.prlimit(watching.pid, number, (less(soft), hard))
        assert watching.lowered() == [name]
        resource.prlimit(watching.pid, number, (soft, hard))
        assert watching.lowered() == []


def test_a_limit_that_a_process_has_set_itself_is_the_right_one(watching: Watching) -> None:
    number = resource.RLIMIT_FSIZE
    soft, hard = resource.prlimit(watching.pid, number)
    own = less(soft)
    assert watching.lowered(f"{number} {own} {hard}") == []
    resource.prlimit(watching.pid, number, (own - 1, hard))
    assert watching.lowered() == ["RLIMIT_FSIZE"]


def test_a_lowered_hard_limit_is_named(watching: Watching) -> None:
    number = resource.RLIMIT_FSIZE
    _, hard = resource.prlimit(watching.pid, number)
    watching.lowered(f"{number} {LARGE} {hard}")
    resource.prlimit(watching.pid, number, (LARGE, LARGE))
    assert watching.lowered() == (["RLIMIT_FSIZE"] if hard != LARGE else [])


def test_a_change_of_its_own_hides_no_limit_that_another_process_has_lowered(watching: Watching) -> None:
    soft, hard = resource.prlimit(watching.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(watching.pid, resource.RLIMIT_FSIZE, (less(soft), hard))
    assert watching.lowered(f"{resource.RLIMIT_CORE} 0 0") == ["RLIMIT_FSIZE"]


def test_a_raised_limit_is_no_matter(watching: Watching) -> None:
    number = resource.RLIMIT_FSIZE
    soft, hard = resource.prlimit(watching.pid, number)
    assert watching.lowered(f"{number} {less(soft)} {hard}") == []
    resource.prlimit(watching.pid, number, (soft, hard))
    assert watching.lowered() == []
