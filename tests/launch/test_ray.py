"""Choose the nodes of a run on a Ray cluster, and give up a process whose Ray worker answers nothing any more."""

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from arl.config.recipe_file import load_recipe
from arl.errors import InputError
from arl.launch.base import make_launcher
from arl.launch.process import Role
from tests.forks import ROOT

QUICKSTART = ROOT / "recipes/quickstart.yaml"

NO_RAY = "Ray is not installed: pip install -e '.[ray]'"


def test_without_ray_the_launcher_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "ray" or name.startswith("arl.launch.ray")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"Ray is not installed; pip install -e '\.\[ray\]' .* or use launcher: local"):
        make_launcher(load_recipe(QUICKSTART, ["launcher=ray"]), tmp_path)


def test_the_controllers_node_comes_first_and_then_those_with_most_gpus() -> None:
    pytest.importorskip("ray", reason=NO_RAY)
    from arl.launch.ray.ray_launcher import choose_nodes

    alive = [
        {"NodeID": name, "NodeManagerHostname": name, "Resources": {"GPU": gpus} if gpus else {}}
        for name, gpus in (("a", 0.0), ("b", 4.0), ("c", 8.0), ("d", 1.0), ("e", 0.0))
    ]
    assert [node["NodeID"] for node in choose_nodes(alive, "a", 4)] == ["a", "c", "b", "d"]
    assert len(choose_nodes(alive, "e", 9)) == 5


class HangingActor:
    """Answer nothing, until it is lost or Ray is asked to kill it."""

    def __init__(self) -> None:
        self.signals: list[int] = []
        self.is_dead = asyncio.Event()
        self.wait = self.read = self.kill = SimpleNamespace(remote=self._call)

    def _call(self, *signals: int) -> "asyncio.Future[bytes]":
        self.signals += signals
        return asyncio.ensure_future(self._until_dead())

    async def _until_dead(self) -> bytes:
        from ray.exceptions import RayActorError

        await self.is_dead.wait()
        raise RayActorError


def test_a_process_whose_worker_hangs_has_ended_within_a_deadline_and_a_lost_one_gets_no_more_signals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason=NO_RAY)
    from arl.launch.ray import ray_launcher

    monkeypatch.setattr(ray_launcher, "END_SECONDS", 0.1)
    monkeypatch.setattr("ray.kill", lambda actor: actor.is_dead.set())

    async def describe(error: Exception) -> str:
        return "was lost"

    async def watch(actor: Any, name: str) -> None:
        role = Role(name, tmp_path / f"{name}.log", node=1, node_name="n2")
        process = ray_launcher.RayProcess(role, actor, 17, describe)
        async with asyncio.timeout(60):
            has_ended = await process.wait_then_kill_group(0.1)  # as a supervisor does before it starts it again
            assert has_ended == (name == "lost")
            assert await process.ended() == f"{name} (pid 17 on n2) was lost"
            assert process.exit_code == -9
            await process.stop(0)

    async def main() -> None:
        await watch(HangingActor(), "hanging")
        lost = HangingActor()
        lost.is_dead.set()
        await watch(lost, "lost")
        assert lost.signals == []

    asyncio.run(main())
