"""Read a run's TensorBoard files as TensorBoard does, and turn them back into records."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

from arl.metrics.names import AGE_BUCKETS, Record
from arl.metrics.tensorboard_tracker import FOLDER


def load(directory: Path) -> EventAccumulator:
    everything = {"tensors": 0}
    return EventAccumulator(str(directory / FOLDER), size_guidance=everything).Reload()


def numbers(directory: Path) -> dict[tuple[int, str], Any]:
    """Map step and tag to the value; fails if a tag has a step twice."""
    events = load(directory)
    found: dict[tuple[int, str], Any] = {}
    for tag in events.Tags()["tensors"]:
        for event in events.Tensors(tag):
            assert (event.step, tag) not in found, f"{tag} has step {event.step} twice"
            found[event.step, tag] = tensor_util.make_ndarray(event.tensor_proto)
    return found


def texts(directory: Path) -> dict[tuple[int, str], str]:
    found = {place: value for place, value in numbers(directory).items() if place[1].startswith("samples/")}
    return {place: value.item().decode() for place, value in found.items()}


def records(directory: Path) -> list[Record]:
    """Return records of steps and of evaluations, by policy version, evaluations first."""
    rows: defaultdict[tuple[int, str], Record] = defaultdict(dict)
    for (step, tag), value in numbers(directory).items():
        if tag.startswith("samples/"):
            continue
        suite = tag.split("/")[1] if tag.startswith("eval/") else "~"
        row = rows[step, suite]
        row |= {"step": step, "policy_version": step}
        if value.ndim == 2:
            row[tag] = value[:, 2].astype(int).tolist()
        elif tag.startswith("by_age/"):
            metric, _, label = tag.rpartition("/")
            empty: list[float | None] = [None] * len(AGE_BUCKETS)
            buckets: Any = row.setdefault(metric, empty)
            buckets[AGE_BUCKETS.index(label)] = value.item()
        else:
            row["time_s" if tag == f"eval/{suite}/time_s" else tag] = value.item()
    return [rows[place] for place in sorted(rows)]


def as_shown(lines: list[Record]) -> list[Record]:
    """Sort the lines of metrics.jsonl likewise, and round their numbers as TensorBoard does."""
    rounded = [{name: _rounded(value) for name, value in line.items()} for line in lines]
    return sorted(rounded, key=lambda row: (row["policy_version"], not any(name.startswith("eval/") for name in row)))


def _rounded(value: Any) -> Any:
    """Round to single precision; counts of histograms are exact."""
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value if value is None else np.float32(value).item()
