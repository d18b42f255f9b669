"""`arl samples` shows what a run has written, whether it lives, has finished or was killed."""

import fcntl
import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from arl.errors import DataError, InputError
from arl.run.samples import Wanted, read_samples
from tests.extending.short_run import ShortRun

STEPS = 2


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps, by a reward that differs within its groups."""
    short = ShortRun(tmp_path_factory.mktemp("finished"), "reward.function=tests.run.test_samples:half")
    return Path(short.train().directory)


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of it, to damage."""
    return Path(shutil.copytree(finished, tmp_path / "short"))


def half(problem: object, response: object) -> dict[str, float]:
    """Call responses with a `1` right."""
    text: str = response.text  # type: ignore[attr-defined]
    return {"correct": float("1" in text), "format": 0.5}


def test_the_newest_step_is_shown_one_episode_of_each_problem_first(finished: Path) -> None:
    shown, coverage = read_samples(finished, Wanted(count=3))
    assert [sample.step for sample in shown] == [STEPS] * 3
    assert [sample.sample for sample in shown] == [0, 0, 1]
    assert coverage == f"the run is finished after {STEPS} steps"


def test_a_sample_is_what_was_written(finished: Path) -> None:
    ((sample,), _) = read_samples(finished, Wanted(count=1, step=1))
    (row,) = [
        row
        for row in pq.read_table(finished / "trajectories").to_pylist()
        if (row["group_id"], row["sample"], row["trained_at"]) == (sample.group_id, sample.sample, 0)
    ]
    assert (sample.prompt, sample.response, sample.answer) == (row["prompt"], row["response"], row["answer"])
    assert sample.prompt.startswith("<bos>")
    assert sample.parts == {"correct": float("1" in sample.response), "format": 0.5}
    assert sample.reward == sum(sample.parts.values())
    assert sample.advantage == row["advantage"]
    assert sample.length == sum(row["loss_mask"])
    assert (sample.age, sample.oldest_version) == (0, 0)


def test_of_a_living_run_only_complete_files_are_read_and_the_command_says_so(run: Path) -> None:
    (run / "summary.json").unlink()
    (run / ".trajectories.partial").write_text("half a file")
    last = {"step": 7, "tokens/trained": 1}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(last) + "\n" + '{"step": 8, "tok')
    with (run / "run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _, coverage = read_samples(run, Wanted())
    assert coverage == "the run is going on, and steps 1 to 2 of 7 are in complete files so far"


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (Wanted(step=9), r"--step 9: .* has steps 1 to 2 in complete files"),
        (Wanted(problem="nobody"), "--problem nobody: .* has no episode of it"),
        (Wanted(outcome="truncated"), "--truncated: none of the 8 episodes found is"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(run: Path, wanted: Wanted, message: str) -> None:
    if wanted.outcome == "truncated":
        file = run / "trajectories" / "000000.parquet"
        rows = [row | {"truncated": False} for row in pq.read_table(file).to_pylist()]
        schema = pq.read_schema(file)
        pq.write_table(schema.empty_table().from_pylist(rows, schema), file)
    with pytest.raises(InputError, match=message):
        read_samples(run, wanted)


def test_directories_without_a_run_its_files_or_their_text_are_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is no run, because it has no recipe\.yaml"):
        read_samples(tmp_path, Wanted())
    (file,) = (run / "trajectories").iterdir()
    table = pq.read_table(file)
    pq.write_table(table.drop_columns("response"), file)
    with pytest.raises(DataError, match="lacks response, as if an older arl had written it"):
        read_samples(run, Wanted())
    file.unlink()
    with pytest.raises(InputError, match="no complete trajectory file yet"):
        read_samples(run, Wanted())
