"""A run on a disk that becomes full says so, and how to resume; with room it goes on as if nothing had happened."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from arl.errors import DiskError
from tests.run.virtual.test_resume import contents, run, write_recipe

SETTINGS = "rollout.problems_per_step=2 rollout.group_size=2 rollout.max_new_tokens=8 train.steps=6 eval.problems=0"


@contextlib.contextmanager
def small_disk(place: Path, kilobytes: int) -> Iterator[None]:
    """Mount a file system of its own in memory; skip the test where that is forbidden."""
    place.mkdir()
    options = ("-t", "tmpfs", "-o", f"size={kilobytes}k")
    if subprocess.run(["mount", *options, "tmpfs", place], capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe's folder, in which it has run where there was room."""
    folder = tmp_path_factory.mktemp("whole")
    run(write_recipe(folder, SETTINGS), folder)
    return folder


@pytest.mark.parametrize("share", [0.1, 0.75, *(pytest.param(x, marks=pytest.mark.slow) for x in (0.3, 0.6, 0.95))])
def test_a_run_whose_disk_is_full_says_what_helps_and_resumes_with_room(
    whole: Path, tmp_path: Path, share: float
) -> None:
    size = sum(file.stat().st_size for file in (whole / "small").rglob("*") if file.is_file())
    disk = tmp_path / "disk"
    with small_disk(disk, int(size * share) // 1024):
        with pytest.raises(DiskError, match=r"No space left on device.*make room there") as failed:
            run(whole / "recipe.yaml", disk)
        resumes = any(disk.glob("small/checkpoints/step_*"))
        assert resumes or share < 0.7  # of a run's bytes, with which its first checkpoint is complete
        assert ("\nresume with: arl train" in str(failed.value)) == resumes
        if resumes:
            subprocess.run(["mount", "-o", "remount,size=100m", disk], check=True)
            run(whole / "recipe.yaml", disk, resume=True)
            assert contents(disk / "small") == contents(whole / "small")
