"""A process on a Ray node is given up within a deadline if the Ray worker that holds it answers nothing any more."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest


async def never(*_: object) -> None:
    await asyncio.Event().wait()


def hanging_actor() -> Any:
    method = SimpleNamespace(remote=lambda *words: asyncio.ensure_future(never(*words)))
    return SimpleNamespace(wait=method, read=method, signal_all=method, end=method)


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return the actors that Ray is asked to kill; answers have a short deadline."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
    from arl.launch.ray import ray_process

    actors: list[object] = []
    monkeypatch.setattr(ray_process, "END_SECONDS", 0.1)
    monkeypatch.setattr("ray.kill", actors.append)
    return actors


def watch(actor: Any, directory: Path) -> Any:
    """Return the RayProcess of an actor."""
    from arl.launch.ray.ray_process import RayProcess

    async def describe(error: Any) -> str:
        return "was given up" if error is None else "was lost"

    return RayProcess(
        "engine-0",
        directory / "engine-0.log",
        None,
        actor=actor,
        pid=17,
        node=1,
        node_name="n2",
        describe_loss=describe,
    )


GIVEN_UP = "engine-0 (pid 17 on n2) was given up"


def test_a_process_that_is_replaced_because_its_worker_hangs_has_ended_within_a_deadline(
    tmp_path: Path, killed: list[object]
) -> None:
    async def main() -> None:
        process = watch(hanging_actor(), tmp_path)
        async with asyncio.timeout(60):
            assert not await process.ends_by_itself(0.1)  # as a supervisor does before it fills the seat again
            assert await process.ended() == GIVEN_UP
        assert process.exit_code == -9
        await process.stop(0)

    asyncio.run(main())


def test_a_process_that_is_lost_gets_no_more_signals(tmp_path: Path, killed: list[object]) -> None:
    from ray.exceptions import RayActorError

    signals: list[int] = []

    async def lost() -> None:
        raise RayActorError

    async def main() -> None:
        actor = hanging_actor()
        actor.wait = SimpleNamespace(remote=lost)
        actor.signal_all = SimpleNamespace(remote=signals.append)
        process = watch(actor, tmp_path)
        async with asyncio.timeout(60):
            assert await process.ends_by_itself(30)
            assert (await process.ended()).endswith("was lost")
        assert signals == []

    asyncio.run(main())
