"""The page of `arl train --dry-run` says which process gets what, what was chosen, and what costs accuracy."""

from pathlib import Path

import pytest

from arl.config.recipe_file import dump_recipe, load_recipe
from arl.errors import InputError
from arl.launch import local
from arl.launch.base import Node
from arl.launch.local import LocalLauncher
from arl.rollout.env import Session
from arl.run.machines import named_nodes, resolve_auto
from arl.run.plan_text import render_plan
from arl.run.preflight import preflight
from arl.run.submit import plan_submission
from arl.types import Problem
from tests.fake_nvml import FakeNvml, fake_nvml
from tests.run.test_checks import recipe


@pytest.fixture
def eight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Make a machine with eight GPUs, of which nobody uses any."""
    return fake_nvml(monkeypatch, 8)


def test_the_plan_names_each_gpu_with_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eight: FakeNvml
) -> None:
    monkeypatch.setattr(local, "visible_devices", lambda: ("4", "5", "6"))
    given = resolve_auto(recipe(tmp_path, engine={"replicas": 2}, train={"dtype": "float32"}))
    lines = render_plan(given, preflight(given)).splitlines()
    gpus = [line.split(maxsplit=1)[1] for line in lines if line.startswith("GPU")]
    assert gpus == [
        "GPU 4 NVIDIA H200, 150.8 GB: engine-0",
        "GPU 5 NVIDIA H200, 150.8 GB: engine-1",
        "GPU 6 NVIDIA H200, 150.8 GB: trainer-0",
    ]
    notes = [line for line in lines if line.startswith("note")]
    assert len(notes) == 1
    assert "train.dtype float32 on GPUs: without tensor cores" in notes[0]


@pytest.mark.parametrize(
    ("train", "engine", "coarse"),
    [("float16", "auto", "engine.dtype"), ("auto", "float16", "train.dtype")],
)
def test_a_float16_that_the_other_side_rounds_away_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eight: FakeNvml, train: str, engine: str, coarse: str
) -> None:
    monkeypatch.setattr(local, "visible_devices", lambda: ("0", "1"))
    given = resolve_auto(recipe(tmp_path, train={"dtype": train}, engine={"dtype": engine}))
    (note,) = [line for line in render_plan(given, preflight(given)).splitlines() if line.startswith("note")]
    assert note.endswith(f"set {coarse} to float16 as well")


def test_the_plan_tells_the_longest_trajectory_from_the_tokens_of_a_micro_batch(tmp_path: Path) -> None:
    given = recipe(tmp_path, rollout={"max_new_tokens": 64}, train={"capacity": 1000})
    found = preflight(given)
    assert 64 < found.longest < 1000
    text = render_plan(given, found)
    assert f"trajectories up to {found.longest}, micro-batches up to 1,000\n" in text


async def asks_again(problem: Problem, session: Session) -> float | None:
    """Stand for an env that adds text."""
    await session.generate()
    return None


def test_the_plan_leaves_room_for_text_that_an_env_adds(tmp_path: Path) -> None:
    given = recipe(tmp_path, rollout={"max_new_tokens": 64, "env": f"{__name__}:asks_again"})
    found = preflight(given)
    assert found.longest < found.max_length
    text = render_plan(given, found)
    assert f"trajectories up to {found.longest} and what the env adds, up to {found.max_length}, micro" in text


TWO_NODES = [Node("a", cores=2), Node("b", cores=2, address="10.0.0.2")]


class NodesApart(LocalLauncher):
    """Offers two nodes, neither of which sees the other's files."""

    nodes = TWO_NODES
    shares_files = False


def planned(tmp_path: Path, *overrides: str) -> str:
    """Return the plan that `arl train` shows before a job begins."""
    path = tmp_path / "recipe.yaml"
    path.write_text(dump_recipe(recipe(tmp_path, launcher="slurm")))
    return plan_submission(load_recipe(path, overrides), None)


def test_the_plan_of_several_nodes_says_what_each_is_for_and_on_which_its_gpus_are(tmp_path: Path) -> None:
    settings = ("cluster.nodes=4", "engine.replicas=4", "train.ranks=4")
    lines = planned(tmp_path, *settings, "cluster.flags={gpus-per-node: 2, cpus-per-task: 24}").splitlines()
    where = "controller on node 1, engines on node 1, node 2, trainer on node 3, node 4"
    assert f"cluster     slurm, 4 nodes; {where}" in lines
    (engines,) = (line for line in lines if line.startswith("engines"))
    assert "4 processes with 12 CPU threads each, 4 GPUs of node 1, node 2;" in engines
    (trainer,) = (line for line in lines if line.startswith("trainer"))
    assert "4 GPUs of node 3, node 4;" in trainer


def test_of_many_nodes_the_plan_names_the_first_and_the_last(tmp_path: Path) -> None:
    text = planned(tmp_path, "cluster.nodes=7", "engine.replicas=6", "cluster.flags.gpus-per-node=1")
    assert "engines on node 1, …, node 6 (6 nodes), trainer on node 7\n" in text


def test_a_plan_for_a_ray_cluster_with_named_gpus_needs_neither_ray_nor_a_cluster(tmp_path: Path) -> None:
    given = recipe(tmp_path, launcher="ray", cluster={"nodes": 2, "address": "10.255.255.1:6379"})
    nodes = named_nodes("1xH100", 2)
    text = render_plan(given, preflight(given, nodes))
    assert "cluster     ray, 2 nodes; controller on node 1, engines on node 1, trainer on node 2\n" in text


def test_nodes_without_a_common_file_system_are_refused(tmp_path: Path) -> None:
    given = recipe(tmp_path, launcher=f"{__name__}:NodesApart")
    with pytest.raises(InputError, match=r"its nodes have no file system in common .*; give output\.directory a path"):
        preflight(given)
