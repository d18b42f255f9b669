"""Every recipe for GPUs is planned for the machines that it is written for, and fits there."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from arl.sweep.request import read_request, write_override
from arl.sweep.sweep_arms import combine
from tests.forks import ROOT, arl
from tests.published_models import PUBLISHED, make_published

RECIPES = {  # model, GPUs of a node, nodes
    "gsm8k/8gpu": ("Qwen2.5-1.5B-Instruct", "8xH100", 1),
    "gsm8k/8gpu-6-2": ("Qwen2.5-1.5B-Instruct", "8xH100", 1),
    "gsm8k/8gpu-collocated": ("Qwen2.5-1.5B-Instruct", "8xH100", 1),
    "gsm8k/one-gpu": ("Qwen3-0.6B", "1xRTX4090", 1),
    "gsm8k/r1-distill-1.5b": ("DeepSeek-R1-Distill-Qwen-1.5B", "8xH100", 1),
    "gsm8k/7b-8k": ("Qwen2.5-7B-Instruct", "8xH100", 1),
    "cluster/1.5b-2x8": ("DeepSeek-R1-Distill-Qwen-1.5B", "8xH100", 2),
    "cluster/7b-4x8": ("Qwen2.5-7B-Instruct", "8xH100", 4),
    "cluster/1.5b-16x8": ("DeepSeek-R1-Distill-Qwen-1.5B", "8xH100", 16),
    "cluster/32b-48x8": ("DeepSeek-R1-Distill-Qwen-32B", "8xH100", 48),
    "code/14b": ("DeepSeek-R1-Distill-Qwen-14B", "8xH100", 32),
    "code/32b": ("DeepSeek-R1-Distill-Qwen-32B", "8xH100", 48),
}
REBUTTAL = "study/rebuttal-staleness"  # a sweep, for 8xH100
ARMS = {
    "grpo,staleness=16": "DeepSeek-R1-Distill-Qwen-1.5B",
    "rloo,staleness=0": "DeepSeek-R1-Distill-Qwen-1.5B",
    "llama-8b,staleness=8": "DeepSeek-R1-Distill-Llama-8B",
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
    sets = {
        "gsm8k/train": [{"question": f"What is {i} + {i}?", "answer": f"#### {2 * i}"} for i in range(300)],
        "gsm8k/test": [{"question": f"What is {i} times 7?", "answer": f"#### {7 * i}"} for i in range(30)],
    }
    for name, letter, count in (("math/train", "x", 300), ("math500/test", "y", 30), ("aime24/test", "z", 30)):
        sets[name] = [
            {"problem": f"Find {letter} = {i}.", "solution": rf"\boxed{{{i}}}", "answer": f"{i}"} for i in range(count)
        ]
    sets["aime25/test"] = sets["aime24/test"]
    sets["amc23/test"] = [{"question": f"Find w = {i}.", "answer": f"{i}"} for i in range(40)]
    tests = json.dumps([{"input": "1", "output": "1", "testtype": "stdin"}])
    for name, letter in (("taco/train", "u"), ("primeintellect/train", "v"), ("codeforces/test", "w")):
        sets[f"deepcoder/{name}"] = [{"problem": f"Print {letter}{i}.", "tests": tests} for i in range(300)]
    hidden = {"public_test_cases": tests, "private_test_cases": tests, "contest_date": "2025-01-04T00:00:00"}
    sets["livecodebench/test5"] = [{"question_content": f"Print s{i}.", **hidden} for i in range(30)]
    for name, rows in sets.items():
        file = folder / f"{name}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(json.dumps(row) for row in rows))
    return folder


def test_every_recipe_for_gpus_is_among_those_that_are_planned() -> None:
    files = {
        f"{room}/{file.stem}"
        for room in ("gsm8k", "cluster", "code")
        for file in (ROOT / "recipes" / room).glob("*.yaml")
    }
    assert files - {"gsm8k/cpu"} == RECIPES.keys()


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_fits_the_machines_that_it_is_written_for(
    name: str, models: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARL_DATA", str(data))
    model, gpus, nodes = RECIPES[name]
    machines = ["--gpus", gpus] if nodes == 1 else ["--gpus", gpus, "--nodes", str(nodes)]
    check_plan(ROOT / f"recipes/{name}.yaml", machines, [f"model.path={models / model}"], tmp_path)


@pytest.mark.parametrize("name", ARMS)
def test_an_arm_of_the_sweep_for_gpus_fits_its_machine(
    name: str, models: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARL_DATA", str(data))
    request = read_request(ROOT / f"recipes/{REBUTTAL}.yaml")
    settings = combine(request.axes, request.named, request.exclude)[name] | {"model.path": str(models / ARMS[name])}
    overrides = [*request.overrides, *(write_override(field, value) for field, value in settings.items())]
    check_plan(request.recipe, ["--gpus", "8xH100"], overrides, tmp_path)


def check_plan(recipe: Path, machines: Sequence[str], overrides: Sequence[str], folder: Path) -> None:
    """Check that the plan of a recipe names what fills each memory, and writes nothing."""
    sets = [word for override in overrides for word in ("--set", override)]
    done = arl("train", str(recipe), "--dry-run", *machines, *sets, cwd=folder)
    assert done.returncode == 0, done.stderr
    lines = [line.split(maxsplit=1)[1] for line in done.stdout.splitlines() if line.startswith("memory ")]
    assert any("GPU" in line and "weights" in line and "KV cache" in line for line in lines)
    assert any("activations" in line and "head" in line for line in lines)
    assert any(line.startswith("an engine's cache holds ") for line in lines)
    assert not list(folder.iterdir())


def test_a_model_without_a_gpu_that_holds_it_is_refused_with_how_to_plan_for_another_machine(
    models: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARL_DATA", str(data))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    settings = [f"model.path={models / 'Qwen2.5-7B-Instruct'}", "engine.replicas=1000", "train.ranks=1000"]
    sets = [word for setting in settings for word in ("--set", setting)]
    refused = arl("train", str(ROOT / "recipes/gsm8k/7b-8k.yaml"), "--dry-run", *sets, cwd=tmp_path)
    assert refused.returncode == 2
    assert "without GPUs: the host needs" in refused.stderr
    assert refused.stderr.strip().endswith("has no GPU; to plan for another one add --dry-run --gpus 8xH100")
