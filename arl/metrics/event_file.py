"""Write and read TensorBoard's event files with its own record format, and without TensorFlow or torch.

    events.out.tfevents.<second>.arl: one Event per record: a step, a wall time, a value per tag

Importing it takes half a second and needs the package tensorboard, so only its tracker does. Numbers are float32, the
only kind of which TensorBoard draws charts.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.histogram import metadata as histograms
from tensorboard.plugins.scalar import metadata as scalars
from tensorboard.plugins.text import metadata as texts
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_tensor_proto

VERSION = "brain.Event:2"  # of the format
PATTERN = "events.out.tfevents.*"


def event_files(directory: Path) -> list[Path]:
    """Return the event files of a run, oldest first."""
    return sorted(directory.glob(PATTERN))


def read_events(files: Sequence[Path]) -> Iterator[Any]:
    """Yield the events of files, in order; what a killed run has left half-written at the end of one is left out."""
    for file in files:
        yield from LegacyEventFileLoader(str(file)).Load()


class EventFile:
    """Write one event file. It takes the place of all others in its directory when `publish` is called."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._path = directory / "unpublished"
        self._writer = RecordWriter(self._path.open("wb"))
        now = time.time()
        restart = SessionLog(status=SessionLog.START)  # a TensorBoard that shows older rows forgets them
        self._write(Event(wall_time=now, file_version=VERSION))
        self._write(Event(wall_time=now, session_log=restart))

    def publish(self) -> None:
        """Give the file its name and remove those whose place it takes."""
        older = event_files(self._directory)
        name = self._directory / f"events.out.tfevents.{int(time.time()):010d}.arl"
        self._path.rename(name)
        for file in older:
            if file != name:
                file.unlink()

    def add_values(self, step: int, wall_time: float, values: Mapping[str, float | list[int]]) -> None:
        """Write numbers, and histograms that count by age 0, 1, …"""
        shown = [_value(tag, value) for tag, value in values.items()]
        self._add_summary(step, wall_time, shown)

    def add_texts(self, step: int, wall_time: float, markdown: Mapping[str, str]) -> None:
        """Write texts, which TensorBoard shows as Markdown."""
        shown = [_text(tag, text) for tag, text in markdown.items()]
        self._add_summary(step, wall_time, shown)

    def _add_summary(self, step: int, wall_time: float, values: Sequence[Any]) -> None:
        event = Event(
            wall_time=wall_time,
            step=step,
            summary=Summary(value=values),
        )
        self._write(event)

    def add(self, event: Any) -> None:
        """Write an event that was read from another file."""
        self._write(event)

    def _write(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())
        self._writer.flush()  # a killed run has lost no row

    def close(self) -> None:
        self._writer.close()


def _value(tag: str, value: float | list[int]) -> Any:
    if isinstance(value, list):
        return _histogram(tag, value)
    return Summary.Value(
        tag=tag,
        metadata=scalars.create_summary_metadata(tag, ""),
        tensor=make_tensor_proto(np.float32(value)),
    )


def _histogram(tag: str, counts: list[int]) -> Any:
    """Make one bin [age, age + 1) for each age."""
    ages = np.arange(len(counts))
    bins = np.stack([ages, ages + 1, counts], axis=1)
    return Summary.Value(
        tag=tag,
        metadata=histograms.create_summary_metadata(tag, ""),
        tensor=make_tensor_proto(bins.astype(np.float64)),
    )


def _text(tag: str, text: str) -> Any:
    content = np.array([text.encode()], dtype=object)
    return Summary.Value(
        tag=tag,
        metadata=texts.create_summary_metadata(tag, ""),
        tensor=make_tensor_proto(content),
    )
