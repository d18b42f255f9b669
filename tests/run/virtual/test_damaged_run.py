"""`arl train --resume` of a damaged run goes on from a whole checkpoint, or says what is damaged; it deletes none."""

import errno
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from rich.console import Console

from arl.config.recipe_file import load_recipe
from arl.errors import DataError, InputError
from arl.launch.durable import remove_any
from arl.metrics.console import ConsoleDisplay
from arl.run.file_manifest import MANIFEST, read_manifest
from arl.run.resume import FILES, FOLDERS
from arl.run.train import train
from tests.forks import arl
from tests.fuzz.checkpoint_damage import damage
from tests.fuzz.checkpoint_run import RUN, WholeRun, make_run, snapshot

OTHER_KINDS: dict[str, Callable[[Path], object]] = {
    "folder": Path.mkdir,
    "FIFO": os.mkfifo,
    "link": lambda path: path.symlink_to("n" * 300),
}
READ_BEFORE = {"recipe.yaml", "sources.json"}  # their readers refuse them
IN_THE_WAY = [(name, kind) for name in sorted({*FILES} - READ_BEFORE) for kind in OTHER_KINDS]
IN_THE_WAY += [("checkpoints/best", "folder"), ("checkpoints/best", "FIFO")]
CHECKPOINTS = ("step_2", "step_4", "step_6")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    make_run(folder)
    return folder


def resumed(folder: Path) -> tuple[int, str]:
    """Return the exit code, and all that was said."""
    recipe = str(folder / RUN / "recipe.yaml")
    done = arl("train", recipe, "--resume", "--set", f"output.directory={folder}")
    return done.returncode, done.stdout + done.stderr


def resume_here(folder: Path, *overrides: str) -> None:
    """Resume in this process."""
    file = folder / RUN / "recipe.yaml"
    settings = [f"output.directory={folder}", *overrides]
    with open(os.devnull, "w") as nowhere:
        train(load_recipe(file, settings), ConsoleDisplay(Console(file=nowhere)), file)


def every_checkpoint(run: Path) -> None:
    for name in CHECKPOINTS:
        (run / "checkpoints" / name / "model.safetensors").write_bytes(b"")


def first_trajectories(run: Path) -> None:
    file = run / "trajectories" / "000000.parquet"
    file.write_bytes(file.read_bytes()[:-1])


def fifo_as_lock(run: Path) -> None:
    (run / "run.lock").unlink()
    os.mkfifo(run / "run.lock")


REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "every checkpoint": (every_checkpoint, "step_2: model.safetensors is torn: it has 0 bytes"),
    "trajectories that all count on": (first_trajectories, "trajectories/000000.parquet is torn"),
    "a lock that would wait for ever": (fifo_as_lock, "run.lock: cannot be opened (it is no regular file)"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_run_that_cannot_be_resumed_is_refused_and_stays_as_it_is(whole: Path, tmp_path: Path, what: str) -> None:
    do, message = REFUSED[what]
    shutil.copytree(whole / RUN, tmp_path / RUN)
    do(tmp_path / RUN)
    code, said = resumed(tmp_path)
    assert code == 2, said
    assert message in said
    assert "Traceback" not in said
    assert sorted(path.name for path in (tmp_path / RUN / "checkpoints").iterdir()) == list(CHECKPOINTS)


@pytest.mark.parametrize("make", [Path.touch, os.mkfifo, lambda path: path.symlink_to("nowhere")])
@pytest.mark.parametrize("name", FOLDERS)
def test_what_has_the_name_of_a_folder_of_the_run_and_is_none_is_named_before_anything_is_cut(
    whole: Path, tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    shutil.copytree(whole / RUN, tmp_path / RUN)
    remove_any(tmp_path / RUN / name)
    make(tmp_path / RUN / name)
    before = snapshot(tmp_path / RUN)
    with pytest.raises(InputError, match=rf"--resume: .*/{name} is no folder, and the run makes one of this name"):
        resume_here(tmp_path)
    assert snapshot(tmp_path / RUN) == before


@pytest.mark.parametrize(("name", "kind"), IN_THE_WAY)
def test_what_has_the_name_of_a_file_of_the_run_and_is_none_is_named_before_a_finished_run_is_reopened(
    whole: Path, tmp_path: Path, name: str, kind: str
) -> None:
    shutil.copytree(whole / RUN, tmp_path / RUN)
    (tmp_path / RUN / "summary.json").write_text("{}")
    (tmp_path / RUN / name).unlink(missing_ok=True)
    (tmp_path / RUN / name).parent.mkdir(exist_ok=True)
    OTHER_KINDS[kind](tmp_path / RUN / name)
    before = snapshot(tmp_path / RUN)
    with pytest.raises(InputError, match=rf"--resume: .*/{name} is (a link, or no regular file|no link)"):
        resume_here(tmp_path, "train.steps=8")
    assert snapshot(tmp_path / RUN) == before


def test_a_directory_whose_name_is_no_unicode_is_refused_and_stays_finished(whole: Path, tmp_path: Path) -> None:
    run = shutil.copytree(whole / RUN, tmp_path / "\udcff")
    (run / "summary.json").write_text("{}")
    before = snapshot(run)
    done = arl("train", str(run / "recipe.yaml"), "--resume", "--set", "train.steps=8")
    assert done.returncode == 2
    assert "its name is no UTF-8; rename it" in done.stderr
    assert snapshot(run) == before


def test_a_folder_whose_number_no_run_counts_to_is_no_checkpoint_and_is_left_alone(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole / RUN, tmp_path / RUN)
    (tmp_path / RUN / "summary.json").write_text("{}")
    (tmp_path / RUN / "checkpoints" / f"step_{'9' * 250}").mkdir()
    resume_here(tmp_path, "train.steps=8")
    assert (tmp_path / RUN / "checkpoints" / f"step_{'9' * 250}").is_dir()
    assert (tmp_path / RUN / "summary-step_6.json").read_text() == "{}"


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to(path.parent.parent / "recipe.yaml")])
@pytest.mark.parametrize("name", ["logs/engine-0.log", "logs/deeper/reward.log.1"])
def test_a_link_or_a_pipe_among_the_files_that_a_run_goes_on_with_is_named_before_anything_is_cut(
    whole: Path, tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    shutil.copytree(whole / RUN, tmp_path / RUN)
    file = tmp_path / RUN / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    make(file)
    recipe = (tmp_path / RUN / "recipe.yaml").read_bytes()
    with pytest.raises(InputError, match=rf"--resume: .*/{re.escape(name)} is a link, or no regular file"):
        resume_here(tmp_path)
    assert (tmp_path / RUN / "recipe.yaml").read_bytes() == recipe


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_damaged_the_command_goes_on_or_says_why(whole: Path, tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    shutil.copytree(whole / RUN, tmp_path / RUN)
    done = [damage(random, tmp_path / RUN) for _ in range(3)]
    untouched = WholeRun(whole / RUN).untouched(tmp_path / RUN)
    code, said = resumed(tmp_path)
    assert "Traceback" not in said, done
    assert code == (0 if untouched else 2), f"{done}: {said}"
    if untouched:
        assert f"from step_{untouched[-1]}" in said


def test_what_lies_in_the_way_of_a_partial_checkpoint_is_removed_and_a_second_refused_one_is_kept(
    whole: Path, tmp_path: Path
) -> None:
    shutil.copytree(whole / RUN, tmp_path / RUN)
    directory = tmp_path / RUN / "checkpoints"
    (directory / ".step_8.partial").write_text("a file")
    (directory / "refused_step_6").mkdir()
    (directory / "step_6" / "run.msgpack").write_bytes(b"\x93")
    code, said = resumed(tmp_path)
    assert code == 0, said
    assert "step_6: run.msgpack is torn" in said
    assert "is kept as refused_step_6-2" in said
    names = sorted(path.name for path in directory.iterdir())
    assert names == ["refused_step_6", "refused_step_6-2", "step_2", "step_4", "step_6"]


def names_below(run: Path) -> list[str]:
    """Name each file that the newest checkpoint lists or counts on, and its manifest."""
    manifest = read_manifest(run / "checkpoints" / CHECKPOINTS[-1])
    own = [f"checkpoints/{CHECKPOINTS[-1]}/{name}" for name in (MANIFEST, *manifest.files)]
    return [*own, *manifest.counted_on]


def failing_disk(file: Path, code: int) -> Callable[..., int]:
    """Return an os.open that fails for one file; with EIO, its reads do."""
    whole = os.open

    def fails(path: Any, *args: Any, **kwargs: Any) -> int:
        if os.fspath(path) != os.fspath(file):
            return whole(path, *args, **kwargs)
        if code == errno.EIO:
            return whole("/proc/self/mem", *args, **kwargs)  # a regular file, of which the kernel reads no first byte
        raise OSError(code, os.strerror(code), os.fspath(path))

    return fails


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ESTALE, errno.EMFILE])
def test_a_file_that_the_disk_does_not_give_ends_the_resume_and_no_older_checkpoint_takes_its_place(
    whole: Path, tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(whole / RUN, tmp_path / RUN)
    run = tmp_path / RUN
    before = snapshot(run)
    for name in names_below(run):
        monkeypatch.setattr(os, "open", failing_disk(run / name, code))
        with pytest.raises(InputError, match=re.escape(os.strerror(code))) as refused:
            resume_here(tmp_path)
        monkeypatch.undo()
        assert not isinstance(refused.value, DataError), name
        assert name.removeprefix(f"checkpoints/{CHECKPOINTS[-1]}/") in str(refused.value)
        assert "it may be whole" in str(refused.value)
    assert snapshot(run) == before
