"""Find what earlier parts of a run have left with wandb, so that a resumed run goes on as the same run there.

    <run>/wandb/arl-run-id             the run's id at wandb, whatever becomes of the directory's path
    <run>/wandb/offline-run-*-<id>/    a part that ran offline ─► set aside ─► tables of samples ─► removed
    <run>/wandb/run-*-<id>/            a part that ran online, which is at the server ─► tables of samples

wandb never joins offline parts: after `wandb sync`, the last one would take the place of those before it. A resumed
offline run is therefore written whole, from metrics.jsonl, and the parts that it contains are removed.
"""

import json
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ID_FILE = "arl-run-id"
ASIDE = "superseded-"  # begins the name of a part that is set aside; `wandb sync` does not look at it


class SampleTable(NamedTuple):
    """Hold a table of samples as wandb has written it."""

    columns: list[str]
    data: list[list[Any]]


def run_id(directory: Path) -> str:
    """Return the id at wandb of the run in `directory`, which is chosen when its first part starts."""
    file = directory / "wandb" / ID_FILE
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        file.write_text(secrets.token_hex(8))
    return file.read_text().strip()


class EarlierParts:
    """Hold the earlier parts of a run. Those that ran offline are set aside, until `remove`."""

    def __init__(self, directory: Path, run: str) -> None:
        home = directory / "wandb"
        for part in home.glob(f"offline-run-*-{run}"):
            part.rename(part.with_name(f"{ASIDE}{part.name}"))  # a new part may have its name, made of the second
        self._offline = sorted(home.glob(f"{ASIDE}*-{run}"))
        self._online = sorted(home.glob(f"run-*-{run}"))

    def tables(self) -> dict[int, SampleTable]:
        """Map each step to its table of samples; of several, the newest."""
        found: dict[int, SampleTable] = {}
        parts = sorted([*self._offline, *self._online], key=lambda part: part.name.partition("run-")[2])
        for part in parts:
            for file in sorted(part.glob("files/media/table/samples_*.table.json")):
                found |= dict(_read(file))
        return found

    def remove(self) -> None:
        """Remove the parts that ran offline, because their rows are in the new one."""
        for part in self._offline:
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
