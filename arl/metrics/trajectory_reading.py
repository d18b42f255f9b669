"""Read the trajectory files of a run, of which a crash may have left one that is torn."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from arl.errors import DataError
from arl.metrics.run_files import TRAJECTORIES

TOKENS = ("token_ids", "behavior_logprobs", "policy_versions", "loss_mask")  # an entry for each token
BATCH_ROWS = 256


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
