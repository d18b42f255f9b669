"""Find what earlier parts of a run have left with wandb, so that a resumed run goes on as the same run there.

    <run>/wandb/arl-run-id             the run's id at wandb, whatever becomes of the directory's path
    <run>/wandb/offline-run-*-<id>/    a part that ran offline ─► set aside, removed when its rows are in the new part
                          …/*.synced   and was synced: its rows are at the server, so the new part leaves them out
    <run>/wandb/run-*-<id>/            a part that ran online: likewise, also rows that it could not send

wandb does not join parts: it uploads the rows of each, also those of steps that were cut back and trained again. Of a
killed run it has not even written the last 32 KiB of rows. So a resumed offline run is written whole, from
metrics.jsonl.
"""

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from arl.metrics.wandb_log import read_summary

ID_FILE = "arl-run-id"
ASIDE = "superseded-"  # begins the name of a part that is set aside; `wandb sync` does not look at it


class SampleTable(NamedTuple):
    """Hold a table of samples as wandb has written it."""

    columns: list[str]
    data: list[list[Any]]


def run_id(directory: Path) -> str:
    """Return the id at wandb of the run in `directory`, which is chosen when its first part starts."""
    file = directory / "wandb" / ID_FILE
    if not os.path.exists(file):
        file.parent.mkdir(exist_ok=True)
        file.write_text(secrets.token_hex(8))
    return file.read_text().strip()


class EarlierParts:
    """Hold the earlier parts of a run. Those that nobody has uploaded are set aside, until `remove`."""

    def __init__(self, directory: Path, run: str) -> None:
        home = directory / "wandb"
        offline = sorted(home.glob(f"offline-run-*-{run}"))
        synced = [part for part in offline if any(part.glob("*.wandb.synced"))]
        for part in offline:
            if part not in synced:
                part.rename(part.with_name(f"{ASIDE}{part.name}"))  # the new part may get its name, which is the second
        self._replaced = sorted(home.glob(f"{ASIDE}*-{run}"))
        self.online = sorted(home.glob(f"run-*-{run}"))  # parts, whose last rows may be on this disk alone
        self._uploaded = [*synced, *self.online]

    @property
    def were_uploaded(self) -> bool:
        """Return whether the server has some rows of the run already."""
        return bool(self._uploaded)

    def summary(self) -> dict[str, float]:
        """Return the largest of each number in the summaries of the parts that were uploaded."""
        largest: dict[str, float] = {}
        for part in self._uploaded:
            for file in sorted(part.glob("*.wandb")):
                for name, value in read_summary(file).items():
                    if isinstance(value, int | float):
                        largest[name] = max(value, largest.get(name, value))
        return largest

    def tables(self) -> dict[int, SampleTable]:
        """Map each step to its table of samples; of several, the newest."""
        found: dict[int, SampleTable] = {}
        parts = sorted([*self._replaced, *self._uploaded], key=lambda part: part.name.partition("run-")[2])
        for part in parts:
            for file in sorted(part.glob("files/media/table/samples_*.table.json")):
                found |= dict(_read(file))
        return found

    def remove(self) -> None:
        """Remove the parts that were set aside, because their rows are in the new one."""
        for part in self._replaced:
            shutil.rmtree(part)


def _read(file: Path) -> Iterator[tuple[int, SampleTable]]:
    """Yield the step of a table, and the table; nothing if a killed run has left it half-written."""
    try:
        written = json.loads(file.read_text())
        table = SampleTable(written["columns"], written["data"])
        step = table.data[0][table.columns.index("step")]
    except (ValueError, KeyError, IndexError):
        return
    yield step, table
