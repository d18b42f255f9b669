"""The files of a run directory: metrics.jsonl, trajectories/*.parquet, trace.json."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from arl.metrics.names import METRICS
from arl.types import Batch


class MetricsFile:
    """metrics.jsonl: one object per training step, and one per evaluation."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def write(self, record: dict[str, float]) -> None:
        assert record.keys() <= METRICS.keys(), f"undefined metrics: {record.keys() - METRICS.keys()}"
        self._file.write(json.dumps(record) + "\n")

    def close(self) -> None:
        self._file.close()


class TrajectoryFiles:
    """trajectories/NNNNNN.parquet: one row per trained trajectory, `STEPS_PER_FILE` steps a file."""

    STEPS_PER_FILE = 20

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._rows: list[dict[str, Any]] = []
        self._steps = 0
        self._files = 0

    def write(self, batch: Batch) -> None:
        for group in batch.groups:
            for sample, t in enumerate(group.trajectories):
                self._rows.append(
                    {
                        "trained_at": batch.version,
                        "group_id": group.group_id,
                        "problem_id": group.problem.id,
                        "sample": sample,
                        "dispatch_version": group.dispatch_version,
                        "arrival_time": group.arrival_time,
                        "prompt_length": t.prompt_length,
                        "reward": t.reward,
                        "truncated": t.truncated,
                        "token_ids": t.token_ids,
                        "behavior_logprobs": t.behavior_logprobs,
                        "policy_versions": t.policy_versions,
                        "loss_mask": t.loss_mask,
                    }
                )
        self._steps += 1
        if self._steps == self.STEPS_PER_FILE:
            self.flush()

    def flush(self) -> None:
        if self._rows:
            path = self._directory / f"{self._files:06d}.parquet"
            pq.write_table(pa.Table.from_pylist(self._rows), path)
            self._files += 1
        self._rows, self._steps = [], 0


class TraceFile:
    """trace.json in Chrome's trace format: open it in Perfetto. Times are clock seconds."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")
        self._separator = "["

    def span(self, track: str, name: str, start: float, end: float, **args: Any) -> None:
        self._write(ph="X", tid=track, name=name, ts=start * 1e6, dur=max(end - start, 0.0) * 1e6, args=args)

    def count(self, name: str, at: float, **values: float) -> None:
        self._write(ph="C", tid=name, name=name, ts=at * 1e6, args=values)

    def _write(self, **event: Any) -> None:
        self._file.write(f"{self._separator}\n{json.dumps({'pid': 'arl', **event})}")
        self._separator = ","

    def close(self) -> None:
        self._file.write(f"{'[' if self._separator == '[' else ''}\n]\n")
        self._file.close()
