"""Write and read trajectories/NNNNNN.parquet: one row per trajectory of a group, when the group is trained or lost.

    write ─► EpisodeRow … ─► a thread: text, table of SCHEMA ─► the file is full ─► written aside, then renamed
                                                                                 └► settle: it is on its way to the disk

Text and tables cost milliseconds per thousand tokens, so a thread makes them, one after the other.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct, structs

from arl.data.table_rows import write_parquet
from arl.data.text_codec import TextCodec
from arl.errors import DataError, RunError
from arl.files import remove_any, writing
from arl.metrics.run_files import TRAJECTORIES
from arl.types import Batch, TrainedTokens, Trajectory, TrajectoryGroup

WRITE_SECONDS = 300.0  # for everything that is left to write
BATCH_ROWS = 256
TOKENS = ("token_ids", "behavior_logprobs", "policy_versions", "loss_mask")  # an entry for each token

# Lists have L entries, one for each token of the trajectory. Of advantages, proximal and current logprobs, entries at
# tokens without a loss are null, and the whole list is null where the step computed none.
SCHEMA = pa.schema(
    {
        "fate": pa.string(),  # trained, or why it was lost
        "trained_at": pa.int64(),  # v of the step; null: lost
        "group_id": pa.int64(),
        "problem_id": pa.string(),
        "source": pa.string(),
        "sample": pa.int64(),  # the episode's place in its group
        "branch": pa.int64(),  # of an episode whose record forked: a row for each; else 0
        "dispatch_version": pa.int64(),
        "dispatch_time": pa.float64(),
        "arrival_version": pa.int64(),
        "arrival_time": pa.float64(),
        "prompt_length": pa.int64(),
        "prompt": pa.string(),  # text of the first prompt_length tokens, with special tokens
        "response": pa.string(),  # text of all other tokens, without those of turns: what the reward function saw
        "answer": pa.string(),  # the problem's
        "reward": pa.float64(),  # as it was trained, shaped; null: not scored
        "unshaped_reward": pa.float64(),  # the weighted sum of the parts, or the one number; null: not scored
        "reward_parts": pa.map_(pa.string(), pa.float64()),  # as the reward function named them; none: one number
        "reward_error": pa.string(),  # why it was graded 0; empty: it was graded
        "measures": pa.map_(pa.string(), pa.float64()),  # by which the env described the episode, at branch 0
        "truncated": pa.bool_(),
        "advantage": pa.float32(),  # of every loss token; null: lost, no loss token, or one for each token
        "advantages": pa.list_(pa.float32()),  # where advantage.kind gives each loss token its own; else null
        "token_ids": pa.list_(pa.int32()),
        "behavior_logprobs": pa.list_(pa.float32()),
        "policy_versions": pa.list_(pa.int32()),
        "loss_mask": pa.list_(pa.bool_()),
        # log π of version trained_at, under objectives that are centered on it by a forward pass; null for a trajectory
        # that was left out because its advantages are 0, and under ppo and objective.proximal loglinear
        "proximal_logprobs": pa.list_(pa.float32()),
        # log π_θ in the forward that computed the token's loss, when the step had made the updates of its earlier
        # minibatches; null for a trajectory that was left out because its advantages are 0
        "current_logprobs": pa.list_(pa.float32()),
    }
)


class EpisodeRow(Struct, frozen=True):
    """Hold one episode, or one branch of it, and what became of it."""

    group: TrajectoryGroup
    sample: int  # the episode's place in the group
    trajectory: Trajectory
    fate: str  # see arl.types
    trained_at: int | None  # the version v of the step that trained it; None: it was lost
    tokens: TrainedTokens | None  # what that step computed of its own loss tokens; None: nothing is known


def group_rows(
    group: TrajectoryGroup,
    fate: str,
    trained_at: int | None,
    tokens: Sequence[TrainedTokens | None] = (),
) -> list[EpisodeRow]:
    """Make a row for each trajectory of a group; `tokens` are theirs, in order, or empty."""
    of_each = iter(tokens or [None] * len(group.trajectories))
    return [
        EpisodeRow(group, sample, trajectory, fate, trained_at, next(of_each))
        for sample, episode in enumerate(group.episodes)
        for trajectory in episode
    ]


def split_tokens(batch: Batch, tokens: TrainedTokens | None) -> list[list[TrainedTokens | None]]:
    """Split what a step computed into the parts of its episodes, group by group."""
    groups: list[list[TrainedTokens | None]] = []
    start = 0
    for group in batch.groups:
        groups.append([])
        for trajectory in group.trajectories:
            end = start + int(trajectory.loss_mask.sum())
            groups[-1].append(tokens and _part_of(tokens, slice(start, end)))
            start = end
    return groups


def _part_of(tokens: TrainedTokens, part: slice) -> TrainedTokens:
    computed = {
        name: None if (values := getattr(tokens, name)) is None else values[part]
        for name in ("advantages", "current_logprobs", "proximal_logprobs")
    }
    return structs.replace(tokens, **computed)


def episode_table(rows: Sequence[EpisodeRow], codec: TextCodec | None) -> pa.Table:
    """Build the table of some episodes; without a codec, prompts and responses are null. NaN becomes null."""
    columns: dict[str, Sequence[Any]] = {
        "fate": [row.fate for row in rows],
        "trained_at": [row.trained_at for row in rows],
        "problem_id": [row.group.problem.id for row in rows],
        "source": [row.group.problem.source for row in rows],
        "sample": [row.sample for row in rows],
        "prompt": [None] * len(rows),
        "response": [None] * len(rows),
        "answer": [row.group.problem.answer for row in rows],
        "reward_parts": [list(row.trajectory.reward_parts.items()) for row in rows],
        "measures": [list(row.trajectory.measures.items()) for row in rows],
        "advantage": [_advantage_of(row.tokens) for row in rows],
    }
    if codec is not None:
        prompt_ids = [tuple(row.trajectory.token_ids[: row.trajectory.prompt_length].tolist()) for row in rows]
        different = list(dict.fromkeys(prompt_ids))  # those of a group have one, but for branches that changed it
        prompts = dict(zip(different, codec.decode_all(different, special_tokens=True), strict=True))
        columns["prompt"] = [prompts[ids] for ids in prompt_ids]
        said = [row.trajectory.token_ids[row.trajectory.prompt_length :].tolist() for row in rows]
        columns["response"] = codec.decode_all(said)
    for name in ("group_id", "dispatch_version", "dispatch_time", "arrival_version", "arrival_time"):
        columns[name] = [getattr(row.group, name) for row in rows]
    for name in ("reward", "unshaped_reward", "prompt_length", "reward_error", "truncated", "branch", *TOKENS):
        columns[name] = [getattr(row.trajectory, name) for row in rows]
    for name in ("advantages", "proximal_logprobs", "current_logprobs"):
        columns[name] = [_computed(row, name) for row in rows]
    arrays = [pa.array(columns[field.name], field.type, from_pandas=True) for field in SCHEMA]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _advantage_of(tokens: TrainedTokens | None) -> float | None:
    """Return the one advantage of an episode; None if there is none, or one for each token."""
    if tokens is None or tokens.per_token or not len(tokens.advantages):
        return None
    return float(tokens.advantages[0])


def _computed(row: EpisodeRow, name: str) -> np.ndarray | None:
    """Spread what the step computed over all tokens, (L,) float32 with NaN elsewhere; None if it computed nothing."""
    tokens = row.tokens
    if tokens is None or (name == "advantages" and not tokens.per_token):
        return None
    values: np.ndarray | None = getattr(tokens, name)
    if values is None or np.isnan(values).all():
        return None
    spread = np.full(len(row.trajectory.token_ids), np.nan, np.float32)
    spread[row.trajectory.loss_mask] = values
    return spread


# ---- files


def file_name(number: int) -> str:
    """Return the name of a trajectory file, counted from 0."""
    return f"{number:06d}.parquet"


class TrajectoryFiles:
    """Write the trajectory files of a run. A file gets its name when it is complete.

    A file ends after `STEPS_PER_FILE` steps, or with the group that fills `ROWS_PER_FILE` rows. At most two files are
    in memory, because one is ended only when the one before is written.

    Args:
        num_files: files to keep, 0 for a new run.
        codec: turns tokens into text; None: prompts and responses are null.
        threaded: do not wait for the thread; in virtual time runs must not depend on when it works.
    """

    STEPS_PER_FILE = 20
    ROWS_PER_FILE = 4096

    def __init__(self, directory: Path, num_files: int, codec: TextCodec | None = None, threaded: bool = False) -> None:
        self._directory = directory
        self._partial = directory.with_name(f".{directory.name}.partial")  # where a file is until it is complete
        self._codec = codec
        self.num_files = num_files
        with writing(directory):
            remove_any(self._partial)
            directory.mkdir(parents=True, exist_ok=True)
            for path in sorted(directory.glob("*.parquet")):
                if int(path.stem) >= num_files:
                    remove_any(path)
        self._threaded = threaded
        self._thread = ThreadPoolExecutor(1, "trajectories")
        self._rows: list[EpisodeRow] = []
        self._num_rows = 0  # of the file that is being filled
        self._steps = 0
        self._tables: list[Future[pa.Table]] = []  # of that file
        self._written: Future[None] | None = None  # the file before that

    def write(self, rows: list[EpisodeRow]) -> None:
        """Add the trajectories of a group."""
        self._rows += rows
        self._num_rows += len(rows)
        if self._num_rows >= self.ROWS_PER_FILE:
            self.flush()

    def end_step(self) -> None:
        """Count a step towards the end of the file, and begin to write its rows; see `flush`."""
        self._steps += 1
        self._pass_on()
        if self._steps == self.STEPS_PER_FILE:
            self.flush()

    def flush(self) -> None:
        """End the file that is being filled, unless it is empty; `settle` waits until it is there.

        Raises:
            RunError: the file before it cannot be written.
        """
        self._pass_on()
        if self._tables:
            self.settle()
            path = self._directory / file_name(self.num_files)
            self._written = self._submit(_write_file, self._tables, self._partial, path)
            self._tables = []
            self.num_files += 1
        self._num_rows = 0
        self._steps = 0

    def settle(self) -> None:
        """Wait until the files that were ended so far are complete. May be called in any thread.

        Raises:
            RunError: a file cannot be written; or that takes longer than WRITE_SECONDS.
        """
        if self._written is None:
            return
        try:
            self._written.result(WRITE_SECONDS)
        except (OSError, pa.ArrowException) as error:  # a TimeoutError is an OSError
            reason = str(error) or f"it was not done within {WRITE_SECONDS:g} s"
            rule = f"{self._directory}: cannot be written ({reason})"
            raise RunError(f"{rule}; resume the run when that is mended") from error

    def close(self) -> None:
        """Write what is left; see `settle`."""
        try:
            self.flush()
            self.settle()
        finally:
            self._thread.shutdown(wait=False)

    def _pass_on(self) -> None:
        """Give the rows so far to the thread."""
        if self._rows:
            self._tables.append(self._submit(episode_table, self._rows, self._codec))
        self._rows = []

    def _submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future = self._thread.submit(work, *arguments)
        if not self._threaded:
            wait([future])
        return future


def _write_file(tables: Sequence[Future[pa.Table]], partial: Path, path: Path) -> None:
    """Write a file of tables, which the same thread has made before."""
    table = pa.concat_tables([made.result() for made in tables])
    with writing(path):
        write_parquet(table, partial)
        partial.rename(path)


def trajectory_files(run: Path) -> list[Path]:
    """List the trajectory files of a run, in the order in which they were written."""
    return sorted((run / TRAJECTORIES).glob("*.parquet"))


def read_batches(path: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield `columns` of a file, a few rows at a time.

    Raises:
        DataError: it is damaged, or lacks a column.
    """
    with _opened(path, columns) as file:
        for batch in file.iter_batches(BATCH_ROWS, columns=list(columns)):
            yield pa.table(batch)


def read_trajectories(path: Path, columns: Sequence[str]) -> pa.Table:
    """Read whole columns of a file.

    Raises:
        DataError: it is damaged, or lacks a column.
    """
    with _opened(path, columns) as file:
        return file.read(columns=list(columns))


@contextlib.contextmanager
def _opened(path: Path, columns: Sequence[str]) -> Iterator[pq.ParquetFile]:
    """Open a file that has `columns`. Only reading belongs into the block."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            missing = [name for name in columns if name not in file.schema_arrow.names]
            if missing:
                raise ValueError(f"it lacks {', '.join(missing)}, as if an older arl had written it")
            yield file
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = str(error).split("\n", 1)[0]
        raise DataError(f"{path}: cannot be read as Parquet ({reason})") from error
