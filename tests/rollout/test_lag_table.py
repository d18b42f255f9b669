"""`rollout.lag` is read as it is meant, or refused with the field, the value, the rule and the remedy."""

from pathlib import Path

import numpy as np
import pytest

from arl.config.recipe import Recipe
from arl.config.recipe_file import dump_recipe
from arl.errors import InputError
from arl.metrics.trajectory_files import TrajectoryFiles, group_rows
from arl.rollout.exact_lag import load_lags
from arl.run.preflight import preflight
from arl.types import Problem, Trajectory, TrajectoryGroup

STEPS, P = 6, 4


def recipe(lag: object = None, **fields: object) -> Recipe:
    values = {
        "model": {"tiny": {"hidden_size": 32, "heads": 2}},
        "data": {"task": "running_checksum", "options": {"size": 100}},
        "rollout": {"problems_per_step": P, "group_size": 2, "lag": lag, "max_new_tokens": 48},
        "train": {"steps": STEPS, "minibatches": 2},
        "eval": {"problems": 0},
    }
    return Recipe.model_validate(values | fields)


def lags_of(recipe: Recipe) -> np.ndarray:
    lags = load_lags(recipe)
    assert lags is not None
    assert lags.shape == (recipe.train.steps, recipe.rollout.problems_per_step)
    assert lags.dtype == np.int32
    return lags


def write(tmp_path: Path, text: str) -> str:
    """Write a file of this text, and return its name."""
    (tmp_path / "lags.yaml").write_text(text)
    return str(tmp_path / "lags.yaml")


def trajectory(versions: list[int], loss: list[bool]) -> Trajectory:
    zeros = np.zeros(len(versions), np.float32)
    ids = np.array(versions, np.int32)
    return Trajectory(ids, zeros, ids, np.array(loss), 1, reward=0.0, unshaped_reward=0.0, truncated=False)


def group(number: int, step: int, lag: int) -> TrajectoryGroup:
    """Its second trajectory is `lag` old; what is older still has no loss."""
    first = trajectory([-1, step, step], [False, True, True])
    second = trajectory([-1, 0, step - lag, step], [False, False, True, True])
    return TrajectoryGroup(number, Problem("p"), (first, second), 0, 0.0, 0, 0.0)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run of STEPS + 1 steps; group i of step v has lag min(v, i), recorded in falling order."""
    directory = tmp_path / "run"
    files = TrajectoryFiles(directory / "trajectories", 0)
    for step in range(STEPS + 1):
        for i in reversed(range(P)):
            files.write(group_rows(group(100 * step + i, step, min(step, i)), "trained", step))
            files.write(group_rows(group(100 * step + i + 50, step, min(step, 9)), "rejected", None))
        if step == 3:
            files.flush()
    files.close()
    (directory / "recipe.yaml").write_text(dump_recipe(recipe()))
    (directory / "summary.json").write_text("{}")
    return directory


def test_a_number_is_the_lag_of_every_group_once_there_are_so_many_versions() -> None:
    assert lags_of(recipe(2)).tolist() == [[lag] * P for lag in (0, 1, 2, 2, 2, 2)]
    assert lags_of(recipe(0)).max() == 0


@pytest.mark.parametrize("text", ["{0: 0.5, 1: 0.3, 4: 0.2, 9: 0}", '{\n\t"4": 2e-1,\n\t"1": 0.3,\n\t"0": 0.5\n}'])
def test_a_distribution_is_drawn_by_seed_and_group_whatever_its_notation(tmp_path: Path, text: str) -> None:
    train = {"steps": 500, "minibatches": 2}
    lags = lags_of(recipe({"dist": write(tmp_path, text)}, train=train))
    shares = [np.mean(lags[4:] == lag) for lag in (0, 1, 4)]
    assert shares == pytest.approx([0.5, 0.3, 0.2], abs=0.05)
    assert set(np.unique(lags)) == {0, 1, 2, 3, 4}  # 2 and 3: where 4 is cut
    assert np.array_equal(lags[:6], lags_of(recipe({"dist": write(tmp_path, "{0: 0.5, 1: 0.3, 4: 0.2}")})))
    assert not np.array_equal(lags, lags_of(recipe({"dist": write(tmp_path, text)}, train=train, seed=1)))


def test_a_trace_has_the_age_of_the_oldest_loss_token_of_each_group(run: Path) -> None:
    rows = [[min(step, i) for i in reversed(range(P))] for step in range(STEPS)]
    assert lags_of(recipe({"trace": str(run)})).tolist() == rows


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("0: 1\n1.5: 1", "lags.yaml: 1.5: Input should be a valid integer"),
        ("{0: -1}", "lags.yaml: 0: Input should be greater than or equal to 0, and it is -1"),
        ("{0: 1, 6: 0.1}", "with train.steps 6 a lag of 6 would always be cut to the number of its step"),
    ],
)
def test_a_bad_distribution_is_refused_by_the_rule_it_breaks(tmp_path: Path, text: str, rule: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        preflight(recipe({"dist": path}))
    assert str(caught.value).startswith(f"rollout.lag.dist {path}")
    assert rule in str(caught.value)


def test_a_trace_of_another_recipe_is_refused_by_the_first_field_that_differs(run: Path) -> None:
    (run / "recipe.yaml").write_text(dump_recipe(recipe(model={"tiny": {"hidden_size": 64, "heads": 2}})))
    with pytest.raises(InputError) as caught:
        preflight(recipe({"trace": str(run)}))
    rule = "model.tiny.hidden_size is 64 there and 32 here; make them equal"
    assert f"rollout.lag.trace {run}: is of another recipe: {rule}" in str(caught.value)
