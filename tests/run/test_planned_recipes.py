"""Every recipe for GPUs is planned for the machines that it is written for, and fits there."""

import json
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.forks import ROOT, arl
from tests.published_models import PUBLISHED, make_published

RECIPES = {
    "8gpu": ("Qwen2.5-1.5B-Instruct", "8xH100"),
    "8gpu-6-2": ("Qwen2.5-1.5B-Instruct", "8xH100"),
    "8gpu-collocated": ("Qwen2.5-1.5B-Instruct", "8xH100"),
    "one-gpu": ("Qwen3-0.6B", "1xRTX4090"),
    "r1-distill-1.5b": ("DeepSeek-R1-Distill-Qwen-1.5B", "8xH100"),
    "7b-8k": ("Qwen2.5-7B-Instruct", "8xH100"),
}
CLUSTER_RECIPES = {  # model, nodes of 8 H100
    "1.5b-2x8": ("DeepSeek-R1-Distill-Qwen-1.5B", 2),
    "7b-4x8": ("Qwen2.5-7B-Instruct", 4),
    "1.5b-16x8": ("DeepSeek-R1-Distill-Qwen-1.5B", 16),
    "32b-48x8": ("DeepSeek-R1-Distill-Qwen-32B", 48),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    for name in PUBLISHED:
        make_published(name, directory / name)
    return directory


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the recipes' sets, in which the problems are short and few."""
    folder = tmp_path_factory.mktemp("data")
    sums = [{"question": f"What is {i} + {i}?", "answer": f"#### {2 * i}"} for i in range(300)]
    products = [{"question": f"What is {i} times 7?", "answer": f"#### {7 * i}"} for i in range(30)]
    equations = [{"problem": f"Find x = {i}.", "solution": rf"\boxed{{{i}}}", "answer": f"{i}"} for i in range(300)]
    others = [{"problem": f"Find y = {i}.", "solution": "…", "answer": f"{i}"} for i in range(30)]
    more = [{"problem": f"Find z = {i}.", "solution": "…", "answer": f"{i}"} for i in range(30)]
    sets = {
        "gsm8k/train": sums,
        "gsm8k/test": products,
        "math/train": equations,
        "math500/test": others,
        "aime24/test": more,
    }
    for name, rows in sets.items():
        file = folder / f"{name}.jsonl"
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(json.dumps(row) for row in rows))
    return folder


def plan_lines(output: str) -> list[str]:
    return [line.split(maxsplit=1)[1] for line in output.splitlines() if line.startswith("memory ")]


def test_every_recipe_for_gpus_is_among_those_that_are_planned() -> None:
    files = {file.stem for file in (ROOT / "recipes/gsm8k").glob("*.yaml")}
    assert files - {"cpu"} == RECIPES.keys()
    assert {file.stem for file in (ROOT / "recipes/cluster").glob("*.yaml")} == CLUSTER_RECIPES.keys()


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_fits_the_machine_that_it_is_written_for(
    name: str, models: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARL_DATA", str(data))
    model, gpus = RECIPES[name]
    file = str(ROOT / f"recipes/gsm8k/{name}.yaml")
    done = arl("train", file, "--dry-run", "--gpus", gpus, "--set", f"model.path={models / model}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = plan_lines(done.stdout)
    assert any("GPU" in line and "weights" in line and "KV cache" in line for line in lines)
    assert any("activations" in line and "head" in line for line in lines)
    assert any(line.startswith("an engine's cache holds ") for line in lines)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", CLUSTER_RECIPES)
def test_a_recipe_for_several_nodes_fits_them(
    name: str, models: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARL_DATA", str(data))
    model, nodes = CLUSTER_RECIPES[name]
    file = str(ROOT / f"recipes/cluster/{name}.yaml")
    machines = ["--nodes", str(nodes), "--gpus", "8xH100"]
    done = arl("train", file, "--dry-run", *machines, "--set", f"model.path={models / model}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = plan_lines(done.stdout)
    assert any("GPU" in line and "weights" in line and "KV cache" in line for line in lines)


def test_a_refusal_on_a_machine_without_gpus_says_how_to_plan_for_another_one(
    models: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARL_DATA", str(data))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    more_than_any_host = [f"model.path={models / 'Qwen2.5-7B-Instruct'}", "engine.replicas=1000", "train.ranks=1000"]
    refused = plan_of_7b(more_than_any_host, tmp_path)
    assert refused.returncode == 2
    assert "without GPUs: the host needs" in refused.stderr
    assert refused.stderr.strip().endswith("has no GPU; to plan for another one add --dry-run --gpus 8xH100")


def test_an_engine_whose_gpus_cannot_share_the_heads_is_refused(
    models: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARL_DATA", str(data))
    settings = [f"model.path={models / 'Qwen2.5-7B-Instruct'}", "engine.replicas=1", "engine.tensor_parallel=8"]
    refused = plan_of_7b(settings, tmp_path, "--gpus", "16xH100")
    assert refused.returncode == 2
    assert "engine.tensor_parallel 8: must divide the 28 attention heads" in refused.stderr


def plan_of_7b(settings: list[str], directory: Path, *options: str) -> CompletedProcess[str]:
    recipe = str(ROOT / "recipes/gsm8k/7b-8k.yaml")
    return arl("train", recipe, "--dry-run", *options, *overrides(settings).split(), cwd=directory)


def overrides(settings: list[str]) -> str:
    return " ".join(f"--set {setting}" for setting in settings)


def test_gpus_are_only_named_for_a_plan() -> None:
    done = arl("train", str(ROOT / "recipes/quickstart.yaml"), "--gpus", "8xH100")
    assert done.returncode == 2
    assert "--gpus 8xH100: names a machine to plan for, and a run takes what is there; add --dry-run" in done.stderr
