"""Replace real servers that are killed, stopped or terminated, or end the run with the reason."""

import asyncio
import re
import signal
from collections.abc import Awaitable, Callable

import psutil
import pytest

from arl.engine.router import Router
from arl.errors import ProcessDied, leaves
from arl.types import GenerateRequest
from tests.engine.conftest import Weights, ask, complete, within
from tests.engine.forked import Servers

LONG = ask("long", tokens=400)


def raised(scenario: Callable[[], Awaitable[None]]) -> str:
    with pytest.raises(ExceptionGroup) as caught:
        within(scenario)
    causes = list(leaves(caught.value))  # of several servers more than one may fail before the first stops the others
    assert all(isinstance(cause, ProcessDied) for cause in causes)
    return "\n".join(map(str, causes))


async def disturbed(
    router: Router, request: GenerateRequest, servers: Servers, number: signal.Signals
) -> tuple[int, ...]:
    """Return the tokens of a request whose server gets signal `number` once it has sent some and has stopped."""
    tokens: tuple[int, ...] = ()
    async for increment in router.generate(request):
        if not tokens:
            while psutil.Process(servers.running[0].pid).status() != psutil.STATUS_STOPPED:  # noqa: ASYNC110
                await asyncio.sleep(0)
            servers.kill(0, number)
        tokens += increment.token_ids
    return tokens


@pytest.mark.parametrize(
    ("number", "how"),
    [
        (signal.SIGKILL, "was killed by SIGKILL"),
        (signal.SIGTERM, "exited with code 0"),
        (
            signal.SIGSTOP,
            r"is stopped by a signal \(SIGSTOP\?\), did not answer in time \(engine client waited 5 s for \S+, request "
            r"long and 0 more\) and was killed",
        ),
    ],
)
def test_however_a_server_ends_its_requests_go_on_as_if_it_had_not(
    old: Weights, number: signal.Signals, how: str
) -> None:
    async def scenario() -> None:
        silence = 5.0 if number == signal.SIGSTOP else 30.0
        servers = Servers(old.path, count=1, generate_seconds=silence, stopping=1)
        async with servers.open() as router:
            servers.generate_seconds = 30.0
            pid = servers.running[0].pid
            tokens = await disturbed(router, LONG, servers, number)
            assert tokens == (await complete(router, LONG)).token_ids
            (note,) = servers.notes
            assert re.match(rf"engine-0 \(pid {pid}\) {how}; restarted in ", note), note
            assert note.endswith(" s at version 0; 1 requests resumed")
            assert router.restarts == 1

    within(scenario)


def test_one_death_too_many_ends_it(old: Weights) -> None:
    async def scenario() -> None:
        servers = Servers(old.path, count=1, max_restarts=1, stopping=2)
        async with servers.open() as router:
            kills = 0
            async for _ in router.generate(LONG):
                if kills == len(servers.notes):  # the first word of another server
                    servers.kill(0)
                    kills += 1

    assert "was killed by SIGKILL; engine.max_restarts 1 allows no more in 3600 s.\nIt has no log." in raised(scenario)


def test_a_server_that_never_comes_up_ends_it_at_once(old: Weights) -> None:
    servers = Servers("/nowhere", count=2)

    async def scenario() -> None:
        async with servers.open():
            raise AssertionError("it opened")

    assert "exited with code 2" in raised(scenario)
    assert not servers.notes
