"""Which of several simultaneous events is reported as the cause of a trainer's end."""

import asyncio
from collections.abc import Callable

import pytest

from arl.errors import ProcessDied, RunError, TrainerError
from arl.train import rank_watch
from arl.train.channel import Hello
from arl.train.rank_watch import RankWatch


class FakeProcess:
    """A Process that ends when the test says so."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.pid = 17
        self.exit_code: int | None = None
        self._ended = asyncio.Event()

    def end(self, exit_code: int) -> None:
        self.exit_code = exit_code
        self._ended.set()

    async def ended(self) -> str:
        await self._ended.wait()
        return f"{self.role} ended with {self.exit_code}"

    async def died(self) -> ProcessDied:
        return ProcessDied(await self.ended())

    def last_words(self) -> str:
        return "The end of its log."


Scene = Callable[[RankWatch, FakeProcess, FakeProcess], None]
TRACE = TrainerError("rank 0 raised")


def killed_then_traceback(watch: RankWatch, first: FakeProcess, second: FakeProcess) -> None:
    second.end(-9)
    watch.raised(TRACE)


def traceback_then_killed(watch: RankWatch, first: FakeProcess, second: FakeProcess) -> None:
    watch.raised(TRACE)
    first.end(1)
    asyncio.get_running_loop().call_later(0.01, second.end, -9)


def exit_then_traceback(watch: RankWatch, first: FakeProcess, second: FakeProcess) -> None:
    first.end(1)
    asyncio.get_running_loop().call_later(0.01, watch.raised, TRACE)


def exit_alone(watch: RankWatch, first: FakeProcess, second: FakeProcess) -> None:
    first.end(0)


@pytest.mark.parametrize(
    ("scene", "cause"),
    [
        (killed_then_traceback, "trainer-1 ended with -9"),
        (traceback_then_killed, "trainer-1 ended with -9"),
        (exit_then_traceback, "rank 0 raised"),
        (exit_alone, "trainer-0 ended with 0"),
    ],
)
def test_a_killed_rank_is_the_cause_else_the_first_traceback_else_the_exit(
    scene: Scene, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_watch, "SETTLE_SECONDS", 0.5)

    async def main() -> RunError:
        watch = RankWatch()
        first, second = FakeProcess("trainer-0"), FakeProcess("trainer-1")
        watch.add(0, first)  # type: ignore[arg-type]
        watch.add(1, second)  # type: ignore[arg-type]
        scene(watch, first, second)
        error = await watch.failure()
        watch.close()
        return error

    assert str(asyncio.run(main())) == cause


def test_a_rank_is_named_by_its_process_until_it_says_hello() -> None:
    async def main() -> None:
        watch = RankWatch()
        watch.add(0, FakeProcess("trainer-0"))  # type: ignore[arg-type]
        assert watch.describe({0, 1}) == "trainer rank 0 (pid 17) and trainer rank 1 (not connected)"
        watch.greeted(Hello("trainer", 1, host="node-3", pid=5))
        assert watch.describe([1]) == "trainer rank 1 (pid 5 on node-3)"
        watch.close()

    asyncio.run(main())
