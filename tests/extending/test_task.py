"""A task from outside of arl brings problems, options, reward and a warm-up; one that lacks a part is refused."""

from pathlib import Path

import pytest
import torch.distributed as dist

from arl.config.recipe import TinyModel
from arl.errors import ArlError
from arl.train.warmup import WarmupJob, warm_up
from tests.extending.short_run import TRAJECTORIES, ShortRun, trained_rows

ECHO = "tests.extending.my_task:Echo"
SHAPE = TinyModel(hidden_size=32, layers=1, heads=2, intermediate_size=32, context=64)


def test_a_task_by_name_is_trained_on_its_own_problems_and_reward(tmp_path: Path) -> None:
    short = ShortRun(tmp_path, f"data.task={ECHO}", "data.options.longest=3")
    assert short.recipe.data.options == {"longest": 3, "steps": 4}
    assert short.recipe.eval.temperature == 0.5
    rows = trained_rows(short.train())
    assert len(rows) == TRAJECTORIES
    assert all(0 <= row["reward"] <= 1 for row in rows)


def test_the_demonstrations_of_a_task_warm_a_tiny_model_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    job = WarmupJob(model=SHAPE, task=ECHO, batch_size=4, eval_samples=4, max_new_tokens=8, output=out)
    warm_up(job)
    dist.destroy_process_group()
    assert '"stage": "copying", "step": 4' in capsys.readouterr().out
    assert (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("task", "overrides", "complaint"),
    [
        ("NoProblems", (), "lacks the method problems(split, seed); see arl/tasks/running_checksum.py"),
        (
            "BoundReward",
            (),
            "reward(problem, response) (missing a required argument: 'response'); is it a",
        ),
        ("NoDemonstrations", ("warmup=true",), "declares no stages of a warm-up; leave it out"),
        ("Echo", ("data.options.longets=3",), "data.options.longets: unknown key; did you mean longest?"),
    ],
)
def test_an_incomplete_task_is_refused_before_anything_starts(
    tmp_path: Path, task: str, overrides: tuple[str, ...], complaint: str
) -> None:
    with pytest.raises(ArlError) as caught:
        ShortRun(tmp_path, f"data.task=tests.extending.my_task:{task}", *overrides).check()
    assert complaint in str(caught.value)
    assert not (tmp_path / "runs").exists()
