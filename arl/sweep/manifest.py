"""Define sweep.json, which says what a sweep consists of. Nothing in it depends on the clock.

{"format": 1, "name": "staleness", "recipe": {…}, "axes": {"rollout.staleness": [0, 4]}, "seeds": [0, 1],
 "arms": [{"name": "staleness=0", "settings": {"rollout.staleness": 0}, "runs": {"0": "staleness=0/seed-0", …}}, …]}
"""

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from arl.errors import DataError
from arl.launch.durable import replace_file
from arl.metrics.run_files import SWEEP_MANIFEST

FORMAT = 1


class ManifestArm(Struct, frozen=True, kw_only=True):
    """Hold one arm: the settings that make it, and where its runs are.

    Args:
        name: its directory in the sweep's.
        settings: field -> value, as in {"rollout.staleness": 8}.
        runs: seed -> run directory, relative to the sweep's.
    """

    name: str
    settings: dict[str, Any]
    runs: dict[int, str]


class SweepManifest(Struct, frozen=True, kw_only=True):
    """Hold a sweep.

    Args:
        recipe: what all arms have in common, resolved: the sweep's recipe without the settings of an arm.
        axes: field -> its values, in the order of the arms.
        seeds: of every arm.
    """

    format: int = FORMAT
    name: str
    recipe: dict[str, Any]
    axes: dict[str, list[Any]]
    seeds: list[int]
    arms: list[ManifestArm]


def read_manifest(directory: Path) -> SweepManifest:
    """Read the manifest of a sweep.

    Raises:
        DataError: there is none, or it is none of this format.
    """
    file = directory / SWEEP_MANIFEST
    try:
        manifest: SweepManifest = msgspec.json.decode(file.read_bytes(), type=SweepManifest)
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}); give the directory of a sweep") from error
    except msgspec.MsgspecError as error:
        raise DataError(f"{file}: is not a sweep's manifest ({error}); give the directory of a sweep") from error
    if manifest.format != FORMAT:
        raise DataError(f"{file}: has format {manifest.format}, and this version reads {FORMAT}; run the sweep anew")
    return manifest


def write_manifest(directory: Path, manifest: SweepManifest) -> None:
    """Write the manifest. A reader finds the old one or the new one, never a part."""
    replace_file(directory / SWEEP_MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))
