"""Say from the samples of a long run whether what it takes stays the same.

samples.jsonl ─► processes: first against last quarter at equal ages ─┐
              └► files: bytes and number by kind, an hour and a step  ┴─► tables
"""

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.storm.samples import ProcessSample, Sample

AGES = (0.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0)  # seconds: bounds between which ages count as equal
SETTLED = 160.0  # seconds: younger processes are still starting, which takes as long as the machine is busy otherwise
MEASURES = ("resident_mb", "proportional_mb", "descriptors", "sockets", "threads")
FLAT_SHARE = 0.03  # of the value itself
FLAT_COUNT = 1.0  # one descriptor or thread more or less is chance
FEWEST = 5  # samples on either side


def read_samples(path: Path) -> list[Sample]:
    """Read samples.jsonl."""
    return [msgspec.json.decode(line, type=Sample) for line in path.read_bytes().splitlines()]


def growth(path: Path) -> dict[str, Any]:
    """Compare the first quarter of the samples with the last one."""
    samples = read_samples(path)
    hours = (samples[-1].seconds - samples[0].seconds) / 3600
    quarter = len(samples) // 4
    first = samples[:quarter]
    last = samples[-quarter:]
    processes = _processes(first, last, hours)
    return {
        "samples": len(samples),
        "hours": round(hours, 3),
        "steps": samples[-1].step - samples[0].step,
        "processes": processes,
        "number_of_processes": _of_whole(first, last, lambda sample: len(sample.processes)),
        "files": _files(samples, hours),
        "not_flat": [row for row in processes if row["age_from"] >= SETTLED and not row["is_flat"]],
    }


def _processes(first: Sequence[Sample], last: Sequence[Sample], hours: float) -> list[dict[str, Any]]:
    """Compare roles at equal ages, so that a process which has just started is not compared with an old one."""
    before = _by_role_and_age(first)
    after = _by_role_and_age(last)
    rows = []
    for role, age in sorted(before.keys() & after.keys()):
        if min(len(before[role, age]), len(after[role, age])) < FEWEST:
            continue
        for measure in MEASURES:
            rows.append(_row(role, age, measure, before[role, age], after[role, age], hours))
    return rows


def _row(
    role: str,
    age: float,
    measure: str,
    before: Sequence[ProcessSample],
    after: Sequence[ProcessSample],
    hours: float,
) -> dict[str, Any]:
    first = statistics.median(getattr(sample, measure) for sample in before)
    last = statistics.median(getattr(sample, measure) for sample in after)
    allowed = max(FLAT_SHARE * first, FLAT_COUNT)
    return {
        "role": role,
        "age_from": age,
        "measure": measure,
        "first_quarter": first,
        "last_quarter": last,
        "per_hour": round((last - first) / (0.75 * hours), 2),  # the middles of the quarters are so far apart
        "is_flat": last - first <= allowed,
    }


def _by_role_and_age(samples: Sequence[Sample]) -> dict[tuple[str, float], list[ProcessSample]]:
    found = defaultdict(list)
    for sample in samples:
        for each in sample.processes:
            found[each.role, max(bound for bound in AGES if bound <= max(0.0, each.age))].append(each)
    return found


def _of_whole(first: Sequence[Sample], last: Sequence[Sample], measure: Any) -> dict[str, float]:
    return {
        "first_quarter": statistics.median(measure(sample) for sample in first),
        "last_quarter": statistics.median(measure(sample) for sample in last),
        "most": max(measure(sample) for sample in (*first, *last)),
    }


def _files(samples: Sequence[Sample], hours: float) -> dict[str, dict[str, float]]:
    """Return by kind what there is at the end, the most there was, and what came in an hour and a step."""
    steps = max(1, samples[-1].step - samples[0].step)
    rows = {}
    for kind, end in samples[-1].files.items():
        begin = samples[0].files[kind]
        rows[kind] = {
            "files": end.files,
            "bytes": end.num_bytes,
            "most_files": max(sample.files[kind].files for sample in samples),
            "most_bytes": max(sample.files[kind].num_bytes for sample in samples),
            "bytes_per_hour": round((end.num_bytes - begin.num_bytes) / hours),
            "bytes_per_step": round((end.num_bytes - begin.num_bytes) / steps, 1),
        }
    return rows


def main() -> None:
    """Print the comparison of a file, which may be of a soak that goes on."""
    parser = argparse.ArgumentParser()
    parser.add_argument("samples", type=Path)
    print(json.dumps(growth(parser.parse_args().samples), indent=2))


if __name__ == "__main__":
    main()
