"""A teacher that is an engine scores finished episodes, and trains as one beside the trainer does."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM

from arl.config.recipe import TinyModel
from arl.errors import RecipeError
from arl.metrics.console import ConsoleDisplay
from arl.models.tiny import make_tiny_model
from arl.rollout.episodes import Episodes
from arl.run.replay.replay_world import replay
from arl.tasks.running_checksum import CHARACTERS
from arl.types import Problem, Trajectory
from tests.run.virtual.test_virtual import Start

SHAPE = TinyModel(hidden_size=32, layers=1, heads=2, intermediate_size=64)
TOP = "top_k: 3, kl: forward, alone: true"


def teacher(directory: Path, seed: int) -> Path:
    make_tiny_model(SHAPE, CHARACTERS, seed, directory)
    return directory


@pytest.mark.parametrize("settings", ["kl: reverse", TOP], ids=["one token", "top 3"])
def test_a_teacher_trains_the_same_from_its_engine_as_beside_the_trainer(
    start: Start, tmp_path: Path, settings: str
) -> None:
    path = teacher(tmp_path / "teacher", 5)
    short = ("train.steps=3", "train.learning_rate=1e-3", "virtual.prefill_token=0")
    ran = {
        place: start(f"objective.teacher={{path: {path}, {settings}, place: {place}}}", f"name={place}", *short)
        for place in ("engine", "trainer")
    }
    engine, trainer = ([record["kl/teacher"] for record in ran[place].records()] for place in ("engine", "trainer"))
    assert engine[0] == pytest.approx(trainer[0], rel=1e-4)
    assert engine == pytest.approx(trainer, rel=0.2)  # costs differ, and so do the schedules
    summary, _ = replay(ran["engine"].directory, [], ConsoleDisplay(Console(file=io.StringIO())))
    assert summary.steps == 3


def test_each_source_has_its_own_teacher(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {name: teacher(tmp_path / name, seed) for seed, name in enumerate(("one", "two"))}
    seen: list[tuple[str, Trajectory]] = []
    run_one = Episodes._run_one

    async def recorded(self: Episodes, problem: Problem, session: object) -> tuple[float, list[Trajectory]]:
        ended, branches = await run_one(self, problem, session)  # type: ignore[arg-type]
        if self.teacher is not None:  # it is of training, and not of an evaluation
            seen.extend((problem.source, branch) for branch in branches)
        return ended, branches

    monkeypatch.setattr(Episodes, "_run_one", recorded)
    data = "data=[{task: running_checksum, name: one, options: {size: 50}}, {task: long_tail, name: two}]"
    path = f"{{one: {paths['one']}, two: {paths['two']}}}"
    start(data, f"objective.teacher={{path: {path}, place: engine}}", "train.steps=2", "reward.function=null")
    models = {name: AutoModelForCausalLM.from_pretrained(path) for name, path in paths.items()}
    assert {source for source, _ in seen} == {"one", "two"}
    for source, trajectory in seen[:20]:
        with torch.no_grad():
            logprobs = models[source](torch.tensor(trajectory.token_ids)[None].long()).logits[0].log_softmax(-1)
        expected = logprobs[np.arange(len(logprobs) - 1), trajectory.token_ids[1:]].numpy()
        assert trajectory.teacher is not None
        given = trajectory.loss_mask[1:]
        np.testing.assert_allclose(trajectory.teacher.logprobs[1:][given], expected[given], atol=1e-5)
    with pytest.raises(RecipeError, match=r"names the sources \['one'\], and data has \['one', 'two'\]"):
        start(data, f"objective.teacher={{path: {{one: {paths['one']}}}, place: engine}}")
