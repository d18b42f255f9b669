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
from tensorboard.util import tensor_util

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
        self._write(Event(wall_time=time.time(), file_version=VERSION))
        restart = SessionLog(status=SessionLog.START)  # a TensorBoard that shows older rows forgets them
        self._write(Event(wall_time=time.time(), step=0, session_log=restart))

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
        summary = Summary(value=[_value(tag, value) for tag, value in values.items()])
        self._write(Event(wall_time=wall_time, step=step, summary=summary))

    def add_texts(self, step: int, wall_time: float, markdown: Mapping[str, str]) -> None:
        """Write texts, which TensorBoard shows as Markdown."""
        values = [
            Summary.Value(
                tag=tag,
                metadata=texts.create_summary_metadata(tag, ""),
                tensor=tensor_util.make_tensor_proto(np.array([text.encode()], dtype=object)),
            )
            for tag, text in markdown.items()
        ]
        self._write(Event(wall_time=wall_time, step=step, summary=Summary(value=values)))

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
        edges = np.arange(len(value) + 1)
        bins = np.stack([edges[:-1], edges[1:], np.array(value)], axis=1).astype(np.float64)
        described = histograms.create_summary_metadata(tag, "")
        return Summary.Value(tag=tag, metadata=described, tensor=tensor_util.make_tensor_proto(bins))
    described = scalars.create_summary_metadata(tag, "")
    return Summary.Value(tag=tag, metadata=described, tensor=tensor_util.make_tensor_proto(np.float32(value)))
