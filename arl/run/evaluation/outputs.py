"""Lay out the directory of an evaluation, and refuse to mix two evaluations in it.

<suite>.json       protocol and model: written first, compared by whoever continues
<suite>.parquet    a row per sample, when all are there; until then parts in <suite>.parts/
scores.json        the scores of every finished suite, for machines
"""

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from arl.errors import DataError, InputError
from arl.launch.durable import replace_file
from arl.launch.file_lock import require_lock, try_lock
from arl.run.evaluation.model_identity import ModelIdentity
from arl.run.evaluation.protocol import Protocol, differing_fields
from arl.run.evaluation.sample import SuiteScore
from arl.run.evaluation.sample_files import SampleFiles

T = TypeVar("T")
SCORES = "scores.json"
LOCK = ".lock"


class Record(Struct, frozen=True, kw_only=True):
    """Hold the content of <suite>.json: what an evaluation is of."""

    protocol: Protocol
    model: ModelIdentity


class Scored(Struct, frozen=True, kw_only=True):
    """Hold one entry of scores.json."""

    model: ModelIdentity
    fingerprint: str  # of the protocol
    protocol: Protocol
    score: SuiteScore


@dataclass(frozen=True)
class SuiteOutput:
    """Hold the files of one suite in one directory."""

    directory: Path
    record: Record

    @property
    def name(self) -> str:
        """Return the name of the suite as a file name."""
        return file_name(self.record.protocol.suite)

    def check(self) -> None:
        """Compare what the directory has of this suite with what is wanted, before anything is written.

        Raises:
            InputError: it has another protocol or model; names every field that differs.
        """
        file = self.directory / f"{self.name}.json"
        if not os.path.exists(file):
            return
        there = _decode(file, Record)
        named = [("", self.record.protocol, there.protocol), ("model ", self.record.model, there.model)]
        lines = []
        for prefix, ours, theirs in named:
            fields = msgspec.to_builtins(ours), msgspec.to_builtins(theirs)
            for field, wanted, found in differing_fields(*fields):
                if (prefix, field) != ("model ", "name"):  # the same directory may be named in several ways
                    lines.append(f"  {prefix}{field}: {found!r} there, {wanted!r} now")
        if lines:
            raise InputError(
                f"--output {self.directory}: holds another evaluation of {self.record.protocol.suite}, and its "
                "samples cannot be mixed with these:\n" + "\n".join(lines) + "\nGive another --output, or remove it"
            )

    def begin(self) -> SampleFiles:
        """Write the record, and return the files of the samples."""
        _replace(self.directory / f"{self.name}.json", self.record)
        return SampleFiles(self.directory, self.name)

    def finish(self, score: SuiteScore) -> Scored:
        """Enter the score into scores.json."""
        scored = Scored(
            model=self.record.model,
            fingerprint=self.record.protocol.fingerprint,
            protocol=self.record.protocol,
            score=score,
        )
        file = self.directory / SCORES
        before = read_scores(file) if os.path.exists(file) else []
        others = [entry for entry in before if entry.protocol.suite != score.suite]
        _replace(file, [*others, scored])
        return scored


def file_name(suite: str) -> str:
    """Return the name of a suite as a file name.

    >>> file_name("mine:Digits")
    'mine.Digits'
    """
    return re.sub(r"[^A-Za-z0-9_-]", ".", suite)


def read_scores(file: Path) -> list[Scored]:
    """Read a scores.json.

    Raises:
        DataError: it is none.
    """
    return _decode(file, list[Scored])


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Make the directory, and hold its lock.

    Raises:
        InputError: another process evaluates into it, it cannot be written, or its lock is no regular file.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--output {directory}: cannot be written ({error.strerror})") from error
    with require_lock(directory / LOCK) as file:
        if not try_lock(file):
            raise InputError(f"--output {directory}: another evaluation writes there; wait for it, or end it")
        yield


def _decode(file: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError) as error:
        raise DataError(
            f"{file}: is not what `arl eval` writes ({error}); remove it, or name another directory"
        ) from error


def _replace(file: Path, content: object) -> None:
    replace_file(file, msgspec.json.format(msgspec.json.encode(content)))
