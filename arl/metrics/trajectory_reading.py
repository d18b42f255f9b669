"""Read trajectory files that somebody else may have written, and check every row before anything uses it.

    000000.parquet ─► columns of these types ─► each row by itself: what is null, what is out of range ─► pa.Table

What rows must have in common, such as those of a group, is the reader's business: see arl.run.replay.verify_rows.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arl.clock import LONGEST_TIME
from arl.data.parquet_files import open_parquet, read_parquet
from arl.errors import DataError
from arl.files import find
from arl.metrics.episode_table import SCHEMA
from arl.metrics.run_files import TRAJECTORIES
from arl.types import LARGEST_REWARD, MOST_COUNT, NOT_SAMPLED, TRAINED

REMEDY = "give the files of a run as they were written, or record the run again"
MAY_BE_NULL = {"trained_at", "prompt", "response", "reward", "unshaped_reward", "advantage"}
TOKENS = ("token_ids", "behavior_logprobs", "policy_versions", "loss_mask")  # an entry for each token, none null
COMPUTED = ("advantages", "proximal_logprobs", "current_logprobs")  # null, or an entry for each token
COUNTS = ("trained_at", "group_id", "sample", "dispatch_version", "arrival_version", "prompt_length")
TIMES = ("dispatch_time", "arrival_time")
BATCH_ROWS = 256
LARGEST_SHAPED = 1e18  # a reward times reward.scale; its square is finite in float32
REWARDS = {"reward": LARGEST_SHAPED, "unshaped_reward": LARGEST_REWARD}
ROUNDING = 1e-5  # of a logprob, which an engine computes in float32


def trajectory_files(run: Path) -> list[Path]:
    """List the trajectory files of a run, in the order in which they were written."""
    return find(run / TRAJECTORIES, "*.parquet")


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """Return the part of SCHEMA with these columns."""
    return pa.schema([SCHEMA.field(name) for name in columns])


def num_rows_of(path: Path, columns: Sequence[str]) -> tuple[int, int]:
    """Return what the footer of a file says: its rows, and its bytes when they are decoded.

    Raises:
        DataError: it is damaged, or lacks a column.
    """
    with open_parquet(path, schema_of(columns), REMEDY) as file:
        metadata = file.metadata
        sizes = [metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)]
        return metadata.num_rows, sum(sizes)


def read_batches(path: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield `columns` of a file, a few rows at a time.

    Raises:
        DataError: it is damaged, lacks a column, or has a row that no run writes.
    """
    start = 0
    with open_parquet(path, schema_of(columns), REMEDY) as file:
        for batch in file.iter_batches(BATCH_ROWS, columns=list(columns)):
            batch.validate(full=True)
            table = pa.table(batch)
            check_rows(path, table, start)
            start += len(table)
            yield table


def read_trajectories(path: Path, columns: Sequence[str]) -> pa.Table:
    """Read whole columns of a file.

    Raises:
        DataError: it is damaged, lacks a column, or has a row that no run writes.
    """
    table = read_parquet(path, schema_of(columns), REMEDY)
    check_rows(path, table)
    return table


def check_rows(path: Path, table: pa.Table, first: int = 0) -> None:
    """Check each row by itself, as far as its columns are there.

    Args:
        first: the number of the first of these rows in the file, from 0.

    Raises:
        DataError: names file, row, field, value and rule of the first one that is wrong.
    """
    RowRules(path, table, first).check()


class RowRules:
    """Check the columns of some rows. Each rule is for whole columns, because a file has millions of tokens."""

    def __init__(self, path: Path, table: pa.Table, first: int) -> None:
        self._path = path
        self._table = table
        self._first = first
        self._names = set(table.column_names)

    def check(self) -> None:
        """Apply every rule whose columns are there."""
        self._check_nulls()
        for name in COUNTS:
            self._refuse(name, self._outside(name, 0, MOST_COUNT), f"it must be a whole number from 0 to {MOST_COUNT}")
        for name in TIMES:
            self._refuse(
                name, self._outside(name, -LONGEST_TIME, LONGEST_TIME), "it must be a time in seconds, within a year"
            )
        for name, largest in REWARDS.items():
            rule = f"it must be finite, from -{largest:.0e} to {largest:.0e}, or null where the episode has no reward"
            self._refuse(name, self._outside(name, -largest, largest), rule)
        self._check_fates()
        self._check_order("dispatch_time", "arrival_time", "a group cannot end before it starts")
        self._check_order("dispatch_version", "arrival_version", "engines serve no version before the trainer has it")
        self._check_parts()
        self._check_lengths()
        self._check_tokens()

    def _check_nulls(self) -> None:
        for name in self._table.column_names:
            if name not in MAY_BE_NULL and name not in COMPUTED:
                self._refuse(name, _flags(self._table[name].is_null()), "it must not be null")
        if {"reward", "unshaped_reward"} <= self._names:
            one_alone = _flags(self._table["reward"].is_null()) != _flags(self._table["unshaped_reward"].is_null())
            self._refuse("unshaped_reward", one_alone, "it must be null where reward is, and only there")

    def _check_fates(self) -> None:
        if {"fate", "trained_at"} <= self._names:
            fates = self._table["fate"]
            trained = _flags(pc.equal(fates, TRAINED))
            rule = f"a row has a step that trained it if its fate is {TRAINED!r}, and only then"
            self._refuse("trained_at", trained != _flags(self._table["trained_at"].is_valid()), rule)
            if "reward" in self._names:
                without = trained & _flags(self._table["reward"].is_null())
                self._refuse("reward", without, "what was trained has a reward")

    def _check_order(self, earlier: str, later: str, rule: str) -> None:
        if {earlier, later} <= self._names:
            self._refuse(later, _flags(pc.less(self._table[later], self._table[earlier])), rule)

    def _check_parts(self) -> None:
        if "reward_parts" not in self._names:
            return
        maps = self._table["reward_parts"].combine_chunks()
        lengths = np.diff(maps.offsets.to_numpy())
        start, end = maps.offsets[0].as_py(), maps.offsets[-1].as_py()
        values = maps.items[start:end]
        numbers = values.to_numpy(zero_copy_only=False)  # null is NaN
        wrong = np.zeros(len(lengths), bool)
        wrong[_rows(lengths)[~(np.abs(numbers) <= LARGEST_REWARD)]] = True
        self._refuse(
            "reward_parts", wrong, f"each part must be finite, from -{LARGEST_REWARD:.0e} to {LARGEST_REWARD:.0e}"
        )

    def _check_lengths(self) -> None:
        if "token_ids" not in self._names:
            return
        lengths = self._lengths("token_ids")
        self._refuse("token_ids", lengths == 0, "an episode has at least the tokens of its prompt", shown=lengths)
        for name in (*TOKENS, *COMPUTED):
            if name in self._names:
                present = _flags(self._table[name].is_valid())
                unlike = present & (self._lengths(name) != lengths)
                self._refuse(name, unlike, "it must have as many entries as token_ids", shown=self._lengths(name))
        if "prompt_length" in self._names:
            too_long = self._column("prompt_length") > lengths
            self._refuse("prompt_length", too_long, "a prompt is no longer than its tokens")

    def _check_tokens(self) -> None:
        for name in TOKENS:
            if name in self._names:
                self._refuse_tokens(name, _flags(self._flat(name).is_null()), "it must not be null")
        if "token_ids" in self._names:
            self._refuse_tokens("token_ids", self._tokens("token_ids") < 0, "ids begin at 0")
        if "behavior_logprobs" in self._names:
            logprobs = self._tokens("behavior_logprobs")
            is_logprob = np.isfinite(logprobs) & (logprobs <= ROUNDING)
            self._refuse_tokens("behavior_logprobs", ~is_logprob, "a logprob is finite and at most 0")
        if "policy_versions" in self._names:
            self._check_versions()

    def _check_versions(self) -> None:
        versions = self._tokens("policy_versions")
        self._refuse_tokens("policy_versions", versions < NOT_SAMPLED, "versions begin at 0; −1: not sampled")
        rows = _rows(self._lengths("policy_versions"))
        if "trained_at" in self._names:
            steps = self._column("trained_at", null=MOST_COUNT)[rows]
            self._refuse_tokens("policy_versions", versions > steps, "no token is newer than the step that trained it")
        unsampled = versions == NOT_SAMPLED
        if "loss_mask" in self._names:
            rule = "only tokens that the policy sampled are trained"
            self._refuse_tokens("loss_mask", unsampled & self._tokens("loss_mask"), rule)
        if "behavior_logprobs" in self._names:
            rule = "it must be 0 where the policy sampled nothing"
            self._refuse_tokens("behavior_logprobs", unsampled & (self._tokens("behavior_logprobs") != 0), rule)
        if "prompt_length" in self._names:
            self._check_prompts(unsampled, rows)

    def _check_prompts(self, unsampled: np.ndarray, rows: np.ndarray) -> None:
        lengths = self._lengths("policy_versions")
        begins = np.cumsum(lengths) - lengths
        places = np.arange(len(rows)) - begins[rows]
        in_prompt = places < self._column("prompt_length")[rows]
        self._refuse_tokens("policy_versions", in_prompt & ~unsampled, "the policy samples nothing of a prompt")

    # ---- columns

    def _column(self, name: str, null: int = 0) -> np.ndarray:
        filled = pc.fill_null(self._table[name], null)
        column: np.ndarray = filled.to_numpy()
        return column

    def _flat(self, name: str) -> pa.Array:
        return pc.list_flatten(self._table[name].combine_chunks())

    def _tokens(self, name: str) -> np.ndarray:
        tokens: np.ndarray = self._flat(name).to_numpy(zero_copy_only=False)
        return tokens

    def _lengths(self, name: str) -> np.ndarray:
        lengths: np.ndarray = pc.fill_null(pc.list_value_length(self._table[name]), 0).to_numpy()
        return lengths

    def _outside(self, name: str, least: float, most: float) -> np.ndarray:
        """Return where a number is outside of a range, or none. A null is not."""
        if name not in self._names:
            return np.zeros(0, bool)
        column = self._table[name]
        inside = pc.and_(pc.greater_equal(column, least), pc.less_equal(column, most))
        return ~_flags(pc.fill_null(inside, True))

    # ---- refusals

    def _refuse_tokens(self, name: str, wrong: np.ndarray, rule: str) -> None:
        if not wrong.any():
            return
        rows = _rows(self._lengths(name))
        token = int(wrong.argmax())
        row = int(rows[token])
        place = token - int(np.searchsorted(rows, row))
        self._raise(row, f"{name}[{place}]", self._flat(name)[token].as_py(), rule)

    def _refuse(self, name: str, wrong: np.ndarray, rule: str, shown: np.ndarray | None = None) -> None:
        if not wrong.any():
            return
        row = int(wrong.argmax())
        if shown is None:
            self._raise(row, name, self._table[name][row].as_py(), rule)
        self._raise(row, f"length of {name}", int(shown[row]), rule)

    def _raise(self, row: int, field: str, value: Any, rule: str) -> NoReturn:
        place = f"{self._path} row {self._first + row + 1}"
        raise DataError(f"{place}: {field} = {value!r}: {rule}; {REMEDY}")


def _flags(column: Any) -> np.ndarray:
    flags: np.ndarray = column.to_numpy(zero_copy_only=False) if isinstance(column, pa.Array) else column.to_numpy()
    return flags.astype(bool)


def _rows(lengths: np.ndarray) -> np.ndarray:
    """Return the row of each entry of a column of lists."""
    return np.repeat(np.arange(len(lengths)), lengths)
