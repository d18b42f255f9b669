"""Real servers that are killed, stopped, asked to go, or cannot start: replaced, or the end says why."""

import asyncio
import signal
from collections.abc import Awaitable, Callable

import pytest

from arl.engine.router import Router
from arl.errors import ProcessDied, leaves
from arl.types import GenerateRequest, WeightUpdate
from tests.engine.conftest import Weights, ask, complete, within
from tests.engine.forked import Servers

LONG = ask("long", tokens=400)


def raised(scenario: Callable[[], Awaitable[None]]) -> str:
    with pytest.raises(ExceptionGroup) as caught:
        within(scenario)
    (cause,) = leaves(caught.value)
    assert isinstance(cause, ProcessDied)
    return str(cause)


async def disturbed(router: Router, request: GenerateRequest, disturb: Callable[[], None]) -> tuple[int, ...]:
    """The tokens of a request that is disturbed after its first increment."""
    tokens: tuple[int, ...] = ()
    async for increment in router.generate(request):
        if not tokens:
            disturb()
        tokens += increment.token_ids
    return tokens


@pytest.mark.parametrize(
    ("number", "how"),
    [
        (signal.SIGKILL, "was killed by SIGKILL"),
        (signal.SIGTERM, "exited with code 0"),
        (signal.SIGSTOP, "did not answer in time and was killed"),
    ],
)
def test_however_a_server_ends_its_requests_go_on_as_if_it_had_not(
    old: Weights, number: signal.Signals, how: str
) -> None:
    async def scenario() -> None:
        servers = Servers(old.path, count=1, generate_seconds=2.0)
        async with servers.open() as router:
            undisturbed = await complete(router, LONG)
            pid = servers.running[0].pid
            tokens = await disturbed(router, LONG, lambda: servers.kill(0, number))
            assert tokens == undisturbed.token_ids
            (note,) = servers.notes
            assert note.startswith(f"engine-0 (pid {pid}) {how}; restarted in ")
            assert note.endswith(" s at version 0; 1 requests resumed")
            assert router.restarts == 1

    within(scenario)


def test_an_idle_server_that_dies_is_replaced_before_anybody_asks(old: Weights) -> None:
    async def scenario() -> None:
        servers = Servers(old.path, count=1)
        async with servers.open() as router:
            servers.kill(0)
            async with asyncio.timeout(20):
                await router._seats[0].replica.lost.wait()  # type: ignore[union-attr]
                await router._any_live.wait()
            assert "0 requests resumed" in servers.notes[0]

    within(scenario)


def test_a_server_that_is_silent_at_a_swap_is_replaced_by_one_with_the_new_weights(old: Weights, new: Weights) -> None:
    async def scenario() -> None:
        servers = Servers(old.path, count=1, swap_seconds=2.0)
        async with servers.open() as router:
            servers.kill(0, signal.SIGSTOP)
            assert (await router.update_weights(WeightUpdate(3, new.path))).version == 3
            assert "did not answer in time and was killed; restarted" in servers.notes[0]
            assert "at version 3" in servers.notes[0]
            assert set((await complete(router, LONG)).policy_versions) == {3}

    within(scenario)


def test_one_death_too_many_ends_it(old: Weights) -> None:
    async def scenario() -> None:
        servers = Servers(old.path, count=1, max_restarts=1)
        async with servers.open() as router:
            for _ in range(2):
                assert len(await disturbed(router, LONG, lambda: servers.kill(0))) == 400

    assert "was killed by SIGKILL; engine.max_restarts 1 allows no more. It has no log." in raised(scenario)


def test_a_server_that_never_comes_up_ends_it_at_once(old: Weights) -> None:
    servers = Servers("/nowhere", count=2)

    async def scenario() -> None:
        async with servers.open():
            raise AssertionError("it opened")

    assert "exited with code 2" in raised(scenario)
    assert not servers.notes


def test_a_server_that_cannot_come_back_ends_it_when_its_restarts_are_spent(old: Weights) -> None:
    async def scenario() -> None:
        servers = Servers(old.path, count=1, max_restarts=3)
        async with servers.open() as router:
            servers.model = "/nowhere"
            await disturbed(router, LONG, lambda: servers.kill(0))

    assert "exited with code 2; engine.max_restarts 3 allows no more" in raised(scenario)
