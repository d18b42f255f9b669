"""Read back what wandb has written offline."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from arl.metrics.names import AGE_BUCKETS, Record
from arl.metrics.wandb_log import read_log, read_summary


def records(directory: Path) -> Iterator[Any]:
    """Yield the records of the one run that wandb wrote below `directory`."""
    (file,) = directory.glob("wandb/offline-run-*/*.wandb")
    return read_log(file)


def history(directory: Path) -> list[dict[str, Any]]:
    """Return the rows that were logged, in order."""
    rows = [record.history for record in records(directory) if record.WhichOneof("record_type") == "history"]
    return [{item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in row.item} for row in rows]


def axes(directory: Path) -> dict[str, str]:
    """Map each defined metric or pattern to the metric that is its axis; empty: it has none of its own."""
    defined = [record.metric for record in records(directory) if record.WhichOneof("record_type") == "metric"]
    return {metric.name or metric.glob_name: metric.step_metric for metric in defined}


def logged_records(directory: Path) -> list[Record]:
    """Return the rows that mirror metrics.jsonl, as its records; those of samples and wandb's own columns left out."""
    return [record_of(row) for row in history(directory) if "policy_version" in row]


def record_of(row: dict[str, Any]) -> Record:
    """Turn a row back into the line of metrics.jsonl, whether its names are flat or wandb has nested them."""
    record: Record = {}
    buckets: dict[str, dict[str, float]] = {}
    for name, value in row.items():
        if name.startswith(("_", "axis/")):
            continue
        if name.startswith("by_age/"):
            metric, _, label = name.rpartition("/")
            buckets.setdefault(metric, {})[label] = value
        else:
            record[name] = value
    for name, value in row.items():
        if isinstance(value, dict) and value.get("_type") == "histogram":
            record[name] = value["values"]
    for name in {name.rpartition(".")[0] for name in record if name.endswith("histogram.values")}:
        record[name] = record.pop(f"{name}.values")
        del record[f"{name}.bins"], record[f"{name}._type"]
    return record | {name: [of.get(label) for label in AGE_BUCKETS] for name, of in buckets.items()}


def summary(directory: Path) -> dict[str, Any]:
    """Return the summary that the run has at last."""
    (file,) = directory.glob("wandb/offline-run-*/*.wandb")
    return read_summary(file)


def run_record(directory: Path) -> Any:
    """Return the record that opens the run: its id, group, tags, config."""
    return next(record.run for record in records(directory) if record.WhichOneof("record_type") == "run")
