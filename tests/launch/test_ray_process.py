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


def test_stopping_a_process_whose_worker_hangs_has_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'arl[ray]'")
    from arl.launch.ray import ray_process

    killed: list[object] = []
    monkeypatch.setattr(ray_process, "END_SECONDS", 0.1)
    monkeypatch.setattr("ray.kill", killed.append)

    async def main() -> None:
        actor = hanging_actor()
        process = ray_process.RayProcess(
            "engine-0",
            tmp_path / "engine-0.log",
            None,
            actor=actor,
            pid=17,
            node=1,
            node_name="n2",
            describe_loss=str,
        )
        ended = asyncio.create_task(process.ended())
        async with asyncio.timeout(60):
            await process.stop(0.1)
            assert await ended == "engine-0 (pid 17 on n2) was given up, because n2 does not answer"
        assert killed == [actor]

    asyncio.run(main())


def test_a_process_that_is_lost_gets_no_more_signals(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'arl[ray]'")
    from ray.exceptions import RayActorError

    from arl.launch.ray.ray_process import RayProcess

    signals: list[int] = []

    async def lost() -> None:
        raise RayActorError

    async def main() -> None:
        actor = hanging_actor()
        actor.wait = SimpleNamespace(remote=lost)
        actor.signal_all = SimpleNamespace(remote=signals.append)
        process = RayProcess(
            "engine-0",
            tmp_path / "engine-0.log",
            None,
            actor=actor,
            pid=17,
            node=1,
            node_name="n2",
            describe_loss=lambda error: "was lost",
        )
        async with asyncio.timeout(60):
            assert await process.ends_by_itself(30)
            assert await process.ended() == "engine-0 (pid 17 on n2) was lost"
        assert signals == []

    asyncio.run(main())
