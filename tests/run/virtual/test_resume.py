"""A run that is killed and resumed ends as the run that nothing interrupted: same weights, same files, to the bit."""

import fcntl
import io
import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from arl.config.recipe_file import dump_recipe, load_recipe
from arl.errors import InputError
from arl.metrics.console import ConsoleDisplay
from arl.run.train import train
from tests.forks import arl
from tests.run.virtual.killing import in_fork
from tests.run.virtual.test_virtual import RECIPE, Start

SMALL = "rollout.max_new_tokens=24 train.steps=4 output.checkpoint_every=2 output.keep_checkpoints=9 eval.problems=4"
WORLDS = {
    "two replicas, cache kept, no bound": "engine.replicas=2 engine.kv_policy=keep virtual.load=0.05 "
    "rollout.staleness=null rollout.max_groups=16",
    "exact lag": "rollout.staleness=null rollout.lag=2 virtual.publish=0.2 virtual.engine_pass=0.001",
    "tail batching, drained": "rollout.staleness=0 rollout.tail_batching.oversample=1.5 mode=collocated "
    "sync.interrupt=false",
    "adapters alone, an average, the versions that sampled": "train.lora.rank=4 virtual.publish=0.05 "
    'objective.proximal=sampled objective.reference={"path":"average","decay":0.5,"coefficient":0.1}',
    "a critic, an average in its rewards, parts of the ratio": "advantage.kind=gae train.critic.clip=0.2 "
    "train.ratio_parts_every=2 "
    'objective.reference={"path":"average","decay":0.5,"coefficient":0.1,"place":"reward"}',
}
MORE_WORLDS = {  # of the slow tests
    "collocated, some groups rejected": "mode=collocated rollout.filter=tests.run.virtual.test_resume:odd",
    "late groups dropped": "rollout.late=drop rollout.staleness=1 virtual.train_step=0.001 virtual.engine_pass=0.01",
    "drained, until so many tokens, every version evaluated": "sync.interrupt=false train.tokens=500 eval.every=1",
    "two sources, one with a curriculum": 'data=[{"task":"running_checksum","weight":2,"options":{"size":10},'
    '"curriculum":2},{"task":"long_tail","options":{"size":10}}] reward.function=null',
}


def odd(problem: Any, trajectories: Any) -> bool:
    """A filter that rejects every other problem."""
    return int(problem.id, 16) % 2 == 1


def contents(directory: str | Path) -> dict[str, bytes]:
    """Everything that must be equal."""
    run = Path(directory)
    files = [run / "metrics.jsonl", run / "trace.json", *run.glob("trajectories/*"), *run.glob("evaluations/*")]
    files += run.glob("checkpoints/step_*/**/*.safetensors")
    return {str(file.relative_to(run)): file.read_bytes() for file in files}


def write_recipe(path: Path, overrides: str = "") -> Path:
    (path / "plain.yaml").write_text(RECIPE)
    (path / "recipe.yaml").write_text(dump_recipe(load_recipe(path / "plain.yaml", f"{SMALL} {overrides}".split())))
    return path / "recipe.yaml"


@pytest.mark.parametrize(
    ("world", "num_runs"),
    [
        *((world, 1) for world in WORLDS),
        *(pytest.param(world, 2, marks=pytest.mark.slow) for world in WORLDS | MORE_WORLDS),
        *(pytest.param(world, 8, marks=pytest.mark.long) for world in WORLDS | MORE_WORLDS),
    ],
)
def test_killed_anywhere_and_resumed_a_run_ends_as_if_nothing_had_happened(
    tmp_path: Path, world: str, num_runs: int
) -> None:
    """Each run is killed in a part of its time of its own; the last one is killed twice."""
    recipe = write_recipe(tmp_path, (WORLDS | MORE_WORLDS)[world])
    rng = random.Random(world)
    whole = in_fork(recipe, tmp_path / "whole")
    assert whole is not None
    assert whole.at_checkpoint is not None
    expected = contents(whole.summary.directory)
    assert len(expected) > 7

    def somewhere(begin: float, end: float) -> tuple[str, int]:
        kind = rng.choice(["loop", "file"])
        points = whole.points[kind]
        return kind, rng.randint(1 + int(begin * points), int(end * points))

    for i in range(num_runs):
        kills = [somewhere(i / num_runs, (i + 1) / num_runs)]
        if i == num_runs - 1:
            kind = rng.choice(["loop", "file"])
            after_a_checkpoint = rng.randint(1 + whole.at_checkpoint[kind], whole.points[kind])
            kills = [(kind, after_a_checkpoint), somewhere(0.0, 0.3)]
        attempts = [in_fork(recipe, tmp_path / str(i), kill) for kill in [*kills, None]]
        assert None in attempts, kills
        end = attempts[-1]
        assert end is not None
        assert end.summary.weights_sha256 == whole.summary.weights_sha256, kills
        assert contents(end.summary.directory) == expected, kills
    assert any(attempt.is_resumed for attempt in attempts if attempt is not None)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe whose run was killed at its end: checkpoints 2 and 4 are there, its summary is not."""
    path = tmp_path_factory.mktemp("killed")
    recipe = write_recipe(path)
    run(recipe, path / "runs")
    (path / "runs" / "small" / "summary.json").unlink()
    return path


def run(recipe: Path, directory: Path, *overrides: str, resume: bool = False) -> tuple[str, str]:
    """The sha256 of its last weights, and what it said."""
    console = io.StringIO()
    loaded = load_recipe(recipe, [f"output.directory={directory}", *overrides])
    summary = train(loaded, ConsoleDisplay(Console(file=console, width=1000)), resume=recipe if resume else None)
    return summary.weights_sha256, console.getvalue()


@pytest.fixture
def again(killed: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A recipe, and a copy of its killed run."""
    shutil.copytree(killed / "runs", tmp_path / "runs")
    return killed / "recipe.yaml", tmp_path / "runs"


def flip(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


@pytest.mark.parametrize(
    ("name", "damage"),
    [("model.safetensors", flip), ("run.msgpack", Path.unlink), ("manifest.json", Path.unlink)],
)
def test_a_damaged_checkpoint_is_refused_by_name_and_the_one_before_is_used(
    killed: Path, again: tuple[Path, Path], name: str, damage: Callable[[Path], None]
) -> None:
    recipe, runs = again
    damage(runs / "small" / "checkpoints" / "step_4" / name)
    _, said = run(recipe, runs, resume=True)
    assert f"step_4: {name}" in said
    assert "from step_2" in said
    assert contents(runs / "small") == contents(killed / "runs" / "small")
    assert (runs / "small" / "checkpoints" / "refused_step_4").is_dir()


def test_a_run_that_lost_files_that_its_checkpoints_count_on_is_refused(again: tuple[Path, Path]) -> None:
    recipe, runs = again
    (runs / "small" / "metrics.jsonl").write_text("")
    with pytest.raises(InputError, match="no intact checkpoint to resume from") as refused:
        run(recipe, runs, resume=True)
    assert f"{runs / 'small' / 'metrics.jsonl'} is missing, or shorter than" in str(refused.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("world=wall", r"world = 'wall': .*step_4 was made with 'virtual'"),
        ("seed=1", "seed = 1: .* was made with 0; resume with that, or start a new run"),
        ("data.options.size=400", "data.options.size = 400"),
        ("data.template_time=2031-12-31", "data.template_time = '2031-12-31T00:00:00': .* was made with '2025-01-01T"),
    ],
)
def test_a_checkpoint_of_another_world_or_model_is_refused_and_left_alone(
    again: tuple[Path, Path], override: str, message: str
) -> None:
    recipe, runs = again
    before = contents(runs / "small")
    with pytest.raises(InputError, match=message):
        run(recipe, runs, override, resume=True)
    assert contents(runs / "small") == before


def test_checkpoints_do_not_make_policies_fresher(start: Start) -> None:
    slow = ("virtual.publish=0.5", "virtual.load=0.2", "rollout.staleness=4", "train.steps=10", "eval.problems=0")
    ages = []
    for every in (0, 2):
        ran = start(*slow, f"output.checkpoint_every={every}")
        ages.append(sum(record["token_age/mean"] for record in ran.records()))
    assert ages[1] == pytest.approx(ages[0], rel=0.25)


def test_a_run_that_lives_cannot_be_resumed(again: tuple[Path, Path]) -> None:
    recipe, runs = again
    with (runs / "small" / "run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="is still running; wait for it, or end it"):
            run(recipe, runs, resume=True)


def test_a_finished_run_is_refused_and_extended_by_more_steps(again: tuple[Path, Path], tmp_path: Path) -> None:
    recipe, runs = again
    with pytest.raises(InputError, match=r"there is no run .*; start it without --resume"):
        run(recipe, tmp_path / "elsewhere", resume=True)
    run(runs / "small" / "recipe.yaml", runs, resume=True)  # a recipe in a run directory means that run
    with pytest.raises(InputError, match=r"is finished after 4 steps; see its summary.json, extend it by --set"):
        run(recipe, runs, resume=True)
    before = json.loads((runs / "small" / "summary.json").read_text())
    _, said = run(recipe, runs, "train.steps=6", resume=True)
    assert f"resuming {runs / 'small'} from step_4" in said
    assert "learning rate" not in said
    assert "has changed" not in said
    after = json.loads((runs / "small" / "summary.json").read_text())
    assert (before["steps"], after["steps"]) == (4, 6)
    assert after["groups"] == {"trained": 24, "in flight": 0}
    assert json.loads((runs / "small" / "summary-step_4.json").read_text()) == before
    assert load_recipe(runs / "small" / "recipe.yaml").train.steps == 6


def test_a_run_ends_at_its_tokens_and_more_of_them_extend_it(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "train.tokens=300 output.checkpoint_every=1")

    def trained() -> list[int]:
        records = [json.loads(line) for line in (tmp_path / "small" / "metrics.jsonl").read_text().splitlines()]
        return [record["tokens/trained_total"] for record in records if "loss" in record]

    run(recipe, tmp_path)
    totals = trained()
    assert len(totals) < 4
    assert totals[-1] >= 300 > totals[-2]
    with pytest.raises(InputError, match=rf"extend it by --set train.tokens=N with N > {totals[-1]}"):
        run(recipe, tmp_path, resume=True)
    with pytest.raises(InputError, match=r"train.tokens = 200: .* was made with 300"):
        run(recipe, tmp_path, "train.tokens=200", resume=True)
    run(recipe, tmp_path, "train.tokens=null", resume=True)
    assert len(trained()) == 4


REWARD = """
def score(problem, response):
    return len(response.text) % {modulus}
"""


def test_a_resumed_run_says_that_its_learning_rate_jumps_and_that_its_reward_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    reward = tmp_path / "graded_by_length.py"
    reward.write_text(REWARD.format(modulus=2))
    settings = "reward.function=graded_by_length:score train.steps=2 train.decay_to=0.1 eval.problems=0"
    recipe = write_recipe(tmp_path, settings)
    _, said = run(recipe, tmp_path / "runs")
    assert "objective decoupled_ppo; advantage grpo; reward graded_by_length:score; env arl.rollout.env" in said
    reward.write_text(REWARD.format(modulus=3))
    _, said = run(recipe, tmp_path / "runs", "train.steps=4", resume=True)
    assert "learning rate 1.5e-05 → 7.29e-05, because train.steps is 4" in said
    assert "reward.function graded_by_length:score: its source has changed since the checkpoint was written" in said


def test_a_checkpoint_is_exported_in_the_dtype_asked_for(killed: Path) -> None:
    small = killed / "runs" / "small"
    done = arl("export", str(small), "--step", "2", "--dtype", "bfloat16", "--output", str(killed / "handed-on"))
    assert done.returncode == 0, done.stderr
    assert re.match(rf"{killed}/handed-on: \S+ GB, bfloat16; ", done.stdout)
    checkpoint = small / "checkpoints" / "step_2"
    trained = load_file(checkpoint / "model.safetensors")
    handed_on = load_file(killed / "handed-on" / "model.safetensors")
    assert handed_on.keys() == trained.keys()
    assert all(torch.equal(tensor, trained[name].bfloat16()) for name, tensor in handed_on.items())
    assert json.loads((killed / "handed-on" / "config.json").read_text())["dtype"] == "bfloat16"
    refused = arl("export", str(small), "--step", "3")
    assert refused.returncode == 2
    assert f"step_3: there is no model; checkpoints of {small}: 2, 4" in refused.stderr
