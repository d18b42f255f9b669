"""What a newcomer types, and what they read when it is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.forks import ROOT, arl


def test_help_imports_nothing_heavy() -> None:
    probe = "import sys, arl.cli; heavy = {'torch', 'transformers', 'wandb', 'pyarrow', 'aiohttp'} & set(sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", f"{probe}; sys.exit(str(heavy) if heavy else 0)"], check=False, timeout=60
    )
    assert done.returncode == 0
    assert "Train a policy with asynchronous RL." in arl("--help").stdout


def test_train_help_fits_one_screen() -> None:
    assert len(arl("train", "--help").stdout.splitlines()) <= 24


def test_a_dry_run_is_not_resumed() -> None:
    done = arl("train", str(ROOT / "recipes/quickstart.yaml"), "--dry-run", "--resume")
    assert done.returncode == 2
    assert "--dry-run starts nothing and --resume goes on: give one of the two" in done.stderr


def test_a_dry_run_prints_the_whole_recipe_and_starts_nothing(tmp_path: Path) -> None:
    done = arl("train", str(ROOT / "recipes/quickstart.yaml"), "--dry-run", "--set", "seed=7", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "seed: 7" in done.stdout
    assert "behavior_weight_cap: 5.0" in done.stdout
    assert "check: false" in done.stdout
    assert not list(tmp_path.iterdir())


def test_check_weights_is_a_setting_of_the_recipe() -> None:
    done = arl("train", str(ROOT / "recipes/quickstart.yaml"), "--dry-run", "--check-weights")
    assert "check: true" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("rollout.stalenes=1", "did you mean staleness?"),
        ("train.steps=none", "train.steps = 'none'"),
        ("data.task=sudoku", "data.task 'sudoku': give one of long_tail, running_checksum, or your own as"),
        ("reward.function=nowhere:score", "cannot import nowhere"),
        ("reward.function=json:score", "json has no attribute score"),
        ("rollout.env=json", "write it as module:attribute"),
        ("train.capacity=20", "rollout.max_new_tokens 48, 74 in all: raise train.capacity to 74 or more"),
    ],
)
def test_bad_input_is_refused_with_exit_code_2_before_anything_starts(
    tmp_path: Path, override: str, complaint: str
) -> None:
    done = arl("train", str(ROOT / "recipes/quickstart.yaml"), "--set", override, cwd=tmp_path)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
