"""Write and read trajectories/NNNNNN.parquet: one row per trajectory of a group, when the group is trained or lost.

    write ─► rows of a step ─► a thread: text, table ─► … ─► the file is full ─► written aside, then renamed
                                                                              └► settle: it is on its way to the disk

Text and tables cost milliseconds per thousand tokens, so a thread makes them, one after the other.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from arl.data.table_rows import write_parquet
from arl.data.text_codec import TextCodec
from arl.errors import DataError, DeadlineError, RunError
from arl.files import remove_any, writing
from arl.metrics.episode_table import EpisodeRow, episode_table
from arl.metrics.run_files import TRAJECTORIES

WRITE_SECONDS = 300.0  # for everything that is left to write
BATCH_ROWS = 256


def file_name(number: int) -> str:
    """Return the name of a trajectory file, counted from 0."""
    return f"{number:06d}.parquet"


class AtOnce(Executor):
    """Do all work at once in the caller's thread, because in virtual time runs must not depend on threads."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See Executor."""
        done: Future[Any] = Future()
        try:
            done.set_result(work(*args, **kwargs))
        except Exception as error:  # `result` raises it, as with a thread
            done.set_exception(error)
        return done


class TrajectoryFiles:
    """Write the trajectory files of a run. A file gets its name when it is complete.

    A file ends after `STEPS_PER_FILE` steps, or with the group that fills `ROWS_PER_FILE` rows. At most two files are
    in memory, because one is ended only when the one before is written.

    Args:
        num_files: files to keep, 0 for a new run.
        codec: turns tokens into text; None: prompts and responses are null.
        threaded: work in a thread; see AtOnce.
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
        self._thread = ThreadPoolExecutor(1, "trajectories") if threaded else AtOnce()
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
            self._written = self._thread.submit(_write_file, self._tables, self._partial, path)
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
        except TimeoutError as error:
            raise DeadlineError(f"the writer of {self._directory} was not done within {WRITE_SECONDS:g} s") from error
        except (OSError, pa.ArrowException) as error:
            raise RunError(
                f"{self._directory}: cannot be written ({error}); resume the run when that is mended"
            ) from error

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
            self._tables.append(self._thread.submit(episode_table, self._rows, self._codec))
        self._rows = []


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
        with path.open("rb") as stream:
            file = pq.ParquetFile(stream, page_checksum_verification=True)
            missing = [name for name in columns if name not in file.schema_arrow.names]
            if missing:
                raise ValueError(f"it lacks {', '.join(missing)}, as if an older arl had written it")
            yield file
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = str(error).split("\n", 1)[0]
        raise DataError(f"{path}: cannot be read as Parquet ({reason})") from error
