"""A recording is verified before a replay uses it: what is wrong is named by file, row, field, value and rule."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from arl.config.recipe_file import load_recipe
from arl.errors import DataError, InputError
from arl.metrics.console import ConsoleDisplay
from arl.metrics.episode_table import SCHEMA
from arl.metrics.trajectory_reading import TOKENS, check_rows, read_trajectories
from arl.run.replay.replay_plan import plan_replay
from arl.run.train import train

Rows = list[dict[str, Any]]
Edit = Callable[[Rows], object]
NAN, INF = float("nan"), float("inf")
RECIPE = """\
name: small
world: virtual
model:
  tiny: {hidden_size: 16, layers: 1, heads: 2, intermediate_size: 32}
data: {task: running_checksum, options: {size: 100}}
rollout: {problems_per_step: 2, group_size: 2, staleness: 2, max_new_tokens: 8}
train: {steps: 3, minibatches: 1, learning_rate: 1.5e-4}
engine: {slots: 4, stream_interval: 4}
eval: {problems: 2}
"""


def record_run(folder: Path, *overrides: str) -> Path:
    """Train a small run in virtual time, and return its directory."""
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE)
    loaded = load_recipe(recipe, [f"output.directory={folder / 'runs'}", *overrides])
    return Path(train(loaded, ConsoleDisplay(Console(file=io.StringIO()))).directory)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_run(tmp_path_factory.mktemp("recorded"))


@pytest.fixture
def file(run: Path) -> Any:
    """The trajectory file of the run, which is as it was after the test."""
    path = run / "trajectories" / "000000.parquet"
    content = path.read_bytes()
    yield path
    path.write_bytes(content)


def rewrite(path: Path, edit: Edit) -> None:
    rows = pq.read_table(path).to_pylist()
    edit(rows)
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path)


def put(row: int, name: str, value: Any) -> Edit:
    return lambda rows: rows[row].update({name: value})


def put_everywhere(name: str, value: Any) -> Edit:
    return lambda rows: [row.update({name: value}) for row in rows]


def put_token(row: int, name: str, place: int, value: Any) -> Edit:
    return lambda rows: rows[row][name].__setitem__(place, value)


WRONG: dict[str, tuple[Edit, str]] = {
    "an id that the model lacks": (
        put_token(0, "token_ids", -1, 10**6),
        r"row 1: token_ids.* = 1000000: the model has",
    ),
    "a negative id": (put_token(2, "token_ids", 1, -1), r"row 3: token_ids\[1\] = -1: ids begin at 0"),
    "another prompt": (
        put_token(1, "token_ids", 1, 3),
        r"row 2: token_ids\[1\] = 3: all rows of a group",
    ),
    "a logprob above 0": (put_token(0, "behavior_logprobs", -1, 0.5), r"logprob.* = 0.5: a logprob is finite"),
    "a logprob of NaN": (put_token(0, "behavior_logprobs", -1, NAN), "a logprob is finite"),
    "an infinite logprob": (put_token(0, "behavior_logprobs", -1, -INF), "a logprob is finite"),
    "a logprob of a prompt": (put_token(0, "behavior_logprobs", 0, -1.0), "must be 0 where the policy sampled nothing"),
    "a token without a value": (put_token(0, "token_ids", 0, None), r"token_ids\[0\] = None: it must not be null"),
    "a reward of NaN": (put(0, "reward", NAN), "row 1: reward = nan: it must be finite"),
    "no reward": (put(0, "reward", None), "row 1: unshaped_reward = .*: it must be null where reward is"),
    "neither reward": (
        lambda rows: rows[0].update(reward=None, unshaped_reward=None),
        "row 1: reward = None: what was trained has a reward",
    ),
    "an infinite part": (put(0, "reward_parts", [("a", INF)]), "reward_parts = .*: each part must be finite"),
    "a version of the future": (put_token(0, "policy_versions", -1, 9), "no token is newer than the step"),
    "a version below −1": (put_token(0, "policy_versions", -1, -2), "versions begin at 0"),
    "a sampled prompt": (put_token(0, "policy_versions", 0, 0), "the policy samples nothing of a prompt"),
    "a mask on the prompt": (put_token(0, "loss_mask", 0, True), "only tokens that the policy sampled are trained"),
    "a short mask": (lambda rows: rows[0]["loss_mask"].pop(), "length of loss_mask = .*as many entries as token_ids"),
    "no prompt": (put_everywhere("prompt_length", 0), "a prompt has at least one token"),
    "a prompt longer than all": (put(0, "prompt_length", 10**6), "a prompt is no longer than its tokens"),
    "a step of the future": (put_everywhere("trained_at", 10**12), "trained_at = 1000000000000: summary.json counts"),
    "a group of the future": (put_everywhere("group_id", 10**12), "group_id = 1000000000000: summary.json counts"),
    "a lost row": (lambda rows: rows.pop(0), "its samples 0, 1, 2"),
    "a doubled row": (lambda rows: rows.insert(1, rows[0]), "its samples 0, 1, 2"),
    "a moved row": (lambda rows: rows.append(rows.pop(0)), "its rows lie together|its samples 0, 1, 2"),
    "a doubled group": (lambda rows: rows.extend(rows[:2]), "a group is recorded once"),
    "a lost group": (lambda rows: rows.__delitem__(slice(2)), "a group is missing or doubled"),
    "a third of a pair": (lambda rows: rows.insert(2, {**rows[1], "sample": 2}), "than rollout.group_size 2"),
    "two times": (put(1, "arrival_time", 1e6), "arrival_time = 1000000.0: all rows of a group have the same"),
    "an end before the start": (put_everywhere("arrival_time", -1e6), "a group cannot end before it starts"),
    "a reward too large to train on": (
        put(0, "unshaped_reward", 1e308),
        r"unshaped_reward = 1e\+308: it must be finite",
    ),
    "a shaped reward too large": (put(0, "reward", -1e308), r"reward = -1e\+308: it must be finite, from -1e\+18"),
    "a part too large": (put(0, "reward_parts", [("a", 1e308)]), "reward_parts = .*: each part must be finite, from"),
    "no tokens": (
        lambda rows: [row.update({name: [] for name in TOKENS} | {"prompt_length": 0}) for row in rows],
        "row 1: length of token_ids = 0: an episode has at least the tokens of its prompt",
    ),
    "more tokens than the model's context": (
        lambda rows: [rows[1][name].extend(rows[1][name][-1:] * 100_000) for name in TOKENS],
        r"row 2: length of token_ids = 1000\d\d: the model's context is \d+ tokens",
    ),
    "steps without a trained token": (
        lambda rows: [row.update(loss_mask=[False] * len(row["loss_mask"])) for row in rows],
        r"row 1: loss_mask.* = False: what the policy sampled is trained",
    ),
    "a time after all runs": (
        put_everywhere("arrival_time", 1e10),
        "arrival_time = 1.*: it must be a time in seconds, wi",
    ),
    "a time that never comes": (put_everywhere("arrival_time", INF), "it must be a time in seconds"),
    "an unknown problem": (put_everywhere("problem_id", "nobody"), "problem_id 'nobody' is not in running_checksum"),
    "a fate that was not": (put(0, "fate", "rejected"), "a row has a step that trained it if its fate is 'trained'"),
}


@pytest.mark.parametrize("damage", WRONG)
def test_a_row_that_no_run_writes_is_named(run: Path, file: Path, damage: str) -> None:
    edit, complaint = WRONG[damage]
    rewrite(file, edit)
    with pytest.raises(DataError, match=complaint):
        plan_replay(run, ())


def test_a_run_that_masks_truncated_episodes_is_replayed_though_steps_have_trained_nothing(tmp_path: Path) -> None:
    masking = record_run(tmp_path, "reward.mask_truncated=true")
    masks = pq.read_table(masking / "trajectories", columns=["loss_mask", "truncated"]).to_pylist()
    assert any(row["truncated"] for row in masks)
    assert not any(any(row["loss_mask"]) for row in masks if row["truncated"])
    plan_replay(masking, ())


def test_a_file_that_is_missing_or_of_another_kind_is_named(run: Path, file: Path) -> None:
    content = file.read_bytes()
    file.rename(file.with_name("000001.parquet"))
    with pytest.raises(DataError, match=r"000000\.parquet must come first, and is missing"):
        plan_replay(run, ())
    file.with_name("000001.parquet").unlink()
    file.mkdir()
    with pytest.raises(DataError, match="it is no regular file"):
        plan_replay(run, ())
    file.rmdir()
    file.write_bytes(content[:-100])
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        plan_replay(run, ())


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("recipe.yaml", "because it has no recipe.yaml"),
        ("trace.json", "trace.json: has no step 0"),
        ("metrics.jsonl", "metrics.jsonl: cannot be read"),
    ],
)
def test_a_recording_without_one_of_its_files_is_refused(run: Path, name: str, complaint: str) -> None:
    moved = (run / name).rename(run / "moved")
    try:
        with pytest.raises(InputError, match=complaint):
            plan_replay(run, ())
    finally:
        moved.rename(run / name)


def test_a_column_of_another_type_is_refused(run: Path, file: Path) -> None:
    table = pq.read_table(file)
    place = table.schema.get_field_index("token_ids")
    pq.write_table(table.set_column(place, "token_ids", table["token_ids"].cast(pa.list_(pa.int64()))), file)
    with pytest.raises(DataError, match=r"column token_ids has type list<.*int64>, and must have list<.*int32>"):
        plan_replay(run, ())


def test_a_file_that_counts_more_than_its_bytes_can_hold_is_refused(file: Path) -> None:
    table = pq.read_table(file)
    ones = pa.array([[1] * (1 << 24)], pa.list_(pa.int32()))  # a run length: a few bytes
    pq.write_table(table.slice(0, 1).set_column(table.schema.get_field_index("token_ids"), "token_ids", ones), file)
    assert file.stat().st_size < 1 << 17
    with pytest.raises(DataError, match=r"it has \d+ values, more than \d+ bytes can hold"):
        read_trajectories(file, ["token_ids"])


def test_what_a_run_writes_passes_every_rule_and_a_flipped_bit_of_any_page_is_noticed(file: Path) -> None:
    table = read_trajectories(file, SCHEMA.names)
    check_rows(file, table)
    content = file.read_bytes()
    chunks = pq.read_metadata(file).row_group(0)
    for number in range(chunks.num_columns):
        chunk = chunks.column(number)
        begin = chunk.dictionary_page_offset or chunk.data_page_offset
        last = begin + chunk.total_compressed_size - 1  # a byte of a page, behind its header
        file.write_bytes(content[:last] + bytes([content[last] ^ 1]) + content[last + 1 :])
        with pytest.raises(DataError):
            read_trajectories(file, SCHEMA.names)
