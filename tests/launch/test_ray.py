"""Choose the nodes of a run on a Ray cluster, and give up a process whose Ray worker answers nothing any more."""

import asyncio
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

HIDE_RAY = "import sys; sys.modules['ray'] = None; from arl.cli import main; main()"
NO_RAY = "Ray is not installed: pip install -e '.[ray]'"


def test_without_ray_the_launcher_says_how_to_get_it_and_nothing_has_started(tmp_path: Path) -> None:
    flags = ("train", "recipes/quickstart.yaml", "--launcher", "ray", "--set", f"output.directory={tmp_path / 'runs'}")
    done = subprocess.run(
        [sys.executable, "-c", HIDE_RAY, *flags], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 2, done.stdout + done.stderr
    words = " ".join(done.stderr.split())
    assert "Ray is not installed; pip install -e '.[ray]' in arl's clone on every node, or use launcher: local" in words
    assert "Traceback" not in words
    assert not (tmp_path / "runs").exists()


@given(
    gpus=st.lists(st.integers(0, 8), min_size=1, max_size=12),
    here=st.integers(0, 11),
    count=st.integers(1, 14),
)
def test_the_controllers_node_comes_first_and_no_node_with_fewer_gpus_before_one_with_more(
    gpus: list[int], here: int, count: int
) -> None:
    pytest.importorskip("ray", reason=NO_RAY)
    from arl.launch.ray.ray_launcher import RayNode, choose_nodes

    alive = [RayNode(str(i), f"n{i}", f"10.0.0.{i}", {"GPU": float(count)}) for i, count in enumerate(gpus)]
    own = alive[here % len(alive)]
    chosen = choose_nodes(alive, own.id, count)
    assert chosen[0] == own
    assert len(chosen) == len({node.id for node in chosen}) == min(count, len(alive))
    others = [node.resources["GPU"] for node in chosen[1:]]
    assert others == sorted(others, reverse=True)
    left_out = [node.resources["GPU"] for node in alive if node not in chosen]
    assert not left_out or not others or max(left_out) <= min(others)


def test_nodes_of_one_name_are_told_apart_by_their_addresses() -> None:
    pytest.importorskip("ray", reason=NO_RAY)
    from arl.launch.ray.ray_launcher import RayNode, choose_nodes

    nodes = [RayNode(address, name, address, {}) for name, address in (("a", "10.1"), ("b", "10.2"), ("a", "10.3"))]
    assert sorted(node.name for node in choose_nodes(nodes, "10.1", 3)) == ["10.1", "10.3", "b"]


async def never(*_: object) -> None:
    await asyncio.Event().wait()


def hanging_actor() -> Any:
    method = SimpleNamespace(remote=lambda *words: asyncio.ensure_future(never(*words)))
    return SimpleNamespace(wait=method, read=method, kill=method)


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return the actors that Ray is asked to kill; answers have a short deadline."""
    pytest.importorskip("ray", reason=NO_RAY)
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
            assert not await process.wait_then_kill_group(0.1)  # as a supervisor does before it starts it again
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
        actor.kill = SimpleNamespace(remote=signals.append)
        process = watch(actor, tmp_path)
        async with asyncio.timeout(60):
            assert await process.wait_then_kill_group(30)
            assert (await process.ended()).endswith("was lost")
        assert signals == []

    asyncio.run(main())
