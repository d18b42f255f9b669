"""Measure what a run takes: memory, descriptors and threads of each process, and files of each kind.

processes, run directory, temporary directory, /dev/shm ─► Sample ─► a line of samples.jsonl
"""

import os
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
import psutil

from tests.storm.run_processes import RunProcess

SHARED_MEMORY = Path("/dev/shm")
KINDS = ("logs", "trajectories", "checkpoints", "metrics.jsonl", "trace.json", "status.json", "model")


class ProcessSample(msgspec.Struct, frozen=True):
    """Hold what one process takes at one moment."""

    role: str
    pid: int
    age: float  # seconds since its start
    resident_mb: float
    proportional_mb: float  # PSS: a page that n processes share counts 1/n
    descriptors: int
    sockets: int
    threads: int


class FileSample(msgspec.Struct, frozen=True):
    """Hold how many files of one kind there are, and their bytes."""

    files: int
    num_bytes: int


class Sample(msgspec.Struct, frozen=True):
    """Hold what a run takes at one moment.

    Args:
        seconds: since the first sample.
        step: the last one that the run has shown.
        attempt: 0 for the first start, one more with each resumption.
    """

    seconds: float
    step: int
    attempt: int
    processes: list[ProcessSample]
    files: dict[str, FileSample]


def take_sample(
    began: float, step: int, attempt: int, processes: Iterable[RunProcess], run: Path, temporary: Path
) -> Sample:
    """Measure everything now."""
    samples = [_measure(each) for each in processes]
    files = {kind: count_files([run / kind]) for kind in KINDS}
    known = {run / kind for kind in KINDS}
    others = [path for path in run.iterdir() if path not in known] if run.exists() else []
    files["other"] = count_files(others)
    files["temporary"] = count_files([temporary])
    files["shared memory"] = count_files([SHARED_MEMORY])
    return Sample(
        seconds=round(time.monotonic() - began, 1),
        step=step,
        attempt=attempt,
        processes=[each for each in samples if each is not None],
        files=files,
    )


def _measure(each: RunProcess) -> ProcessSample | None:
    """Measure one process; None: it has just ended."""
    process = each.process
    try:
        memory = process.memory_full_info()
        targets = _open_files(process.pid)
        return ProcessSample(
            role=each.role,
            pid=process.pid,
            age=round(time.time() - process.create_time(), 1),
            resident_mb=round(memory.rss / 1e6, 2),
            proportional_mb=round(memory.pss / 1e6, 2),
            descriptors=len(targets),
            sockets=sum(target.startswith("socket:") for target in targets),
            threads=process.num_threads(),
        )
    except (psutil.Error, OSError):
        return None


def _open_files(pid: int) -> list[str]:
    """Return what the descriptors of a process stand for."""
    targets = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            targets.append(os.readlink(entry))
        except FileNotFoundError:  # closed meanwhile
            continue
    return targets


def count_files(paths: Iterable[Path]) -> FileSample:
    """Count files at and below paths, and their bytes; what vanishes meanwhile is left out."""
    files = 0
    num_bytes = 0
    for path in _files_below(paths):
        try:
            num_bytes += path.stat().st_size
        except FileNotFoundError:
            continue
        files += 1
    return FileSample(files, num_bytes)


def _files_below(paths: Iterable[Path]) -> Iterable[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        for folder, _, names in os.walk(path):
            yield from (Path(folder, name) for name in names)
