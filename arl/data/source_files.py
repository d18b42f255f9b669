"""Find the files that a recipe's path names: one file, a glob of them, or files of a Hugging Face data set.

data.path ─► a file ─► taken
         └─► a glob ─► every file that it matches, by name
         └─► hf://datasets/owner/repo/glob ─► does the hub answer within seconds? ─► yes: download what the cache lacks
                                                                                 └─► no: the cache, or refused, with the
                                                                                     command that fetches it
"""

import contextlib
import fnmatch
import glob
import os
import re
import shlex
from pathlib import Path

from msgspec import Struct

from arl.data.hub import ask_hub, go_offline, hub_errors
from arl.errors import DataError

SUFFIXES = (".jsonl", ".json", ".parquet")


def find_files(spec: str, field: str) -> list[Path]:
    """Return the files in the order of their names.

    Args:
        spec: path, glob, or hf://datasets/owner/repo/glob.
        field: how messages name it, as in "data.path".

    Raises:
        DataError: there is no such file, or it is neither jsonl nor parquet; says what is there, or what fetches it.
    """
    what = f"{field} {spec}"
    files = fetch_hub_files(parse_hub_files(spec, field), field) if spec.startswith(PREFIX) else _local(spec, what)
    others = [file for file in files if file.suffix not in SUFFIXES]
    if others:
        raise DataError(f"{what}: {others[0].name} is not {', '.join(SUFFIXES)}: give jsonl or parquet files")
    return files


def _local(spec: str, what: str) -> list[Path]:
    path = Path(os.path.expanduser(spec))
    if os.path.isfile(path):
        return [path]
    if os.path.isdir(path):
        raise DataError(f"{what}: is a directory; give a file, or a glob as in {path}/*.parquet")
    if glob.has_magic(str(path)):
        found = sorted(Path(name) for name in glob.glob(str(path), recursive=True) if os.path.isfile(name))
        if not found:
            raise DataError(f"{what}: matches no file; looked in {Path.cwd()}")
        return found
    raise DataError(f"{what}: there is no file {path.absolute()}{_siblings(path.absolute().parent)}")


def _siblings(directory: Path) -> str:
    """Say which files lie where one was looked for."""
    if not os.path.isdir(directory):
        return f", nor a directory {directory}"
    names = sorted(name for name in os.listdir(directory) if name.endswith(SUFFIXES))
    return f"; {directory} has {', '.join(names[:8]) or 'no jsonl and no parquet'}"


PREFIX = "hf://"
_NOTATION = re.compile(r"hf://datasets/(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[^/]+))?/(?P<pattern>.+)")


class HubFiles(Struct, frozen=True):
    """Name files of a data set on the hub."""

    repo: str  # owner/name
    pattern: str  # path in the repository; may hold * and ?
    revision: str = "main"

    def __str__(self) -> str:
        at = "" if self.revision == "main" else f"@{self.revision}"
        return f"{PREFIX}datasets/{self.repo}{at}/{self.pattern}"

    @property
    def fetch_command(self) -> str:
        """Return the shell command that puts the files into the cache."""
        revision = [] if self.revision == "main" else ["--revision", self.revision]
        words = ["hf", "download", "--repo-type", "dataset", self.repo, *revision, "--include", self.pattern]
        return shlex.join(words)


def parse_hub_files(spec: str, field: str) -> HubFiles:
    """Read the notation of huggingface_hub, as in `hf://datasets/openai/gsm8k/main/train-*.parquet`.

    Raises:
        DataError: another form.
    """
    found = _NOTATION.fullmatch(spec)
    if found is None:
        raise DataError(
            f"{field} {spec}: write it as hf://datasets/OWNER/REPO/FILE, where FILE may be a glob, "
            "as in hf://datasets/openai/gsm8k/main/train-*.parquet"
        )
    return HubFiles(found["repo"], found["pattern"], found["revision"] or "main")


def fetch_hub_files(source: HubFiles, field: str) -> list[Path]:
    """Return the files, after downloading those that the cache lacks. Without a hub, the cache alone is looked at.

    Raises:
        DataError: they are nowhere; says what the hub and the cache said, and the command that fetches them.
    """
    from huggingface_hub import constants

    answer = ask_hub(source.repo, "dataset", source.revision)
    if not answer.refusal:
        try:
            files = _snapshot_files(source)
        except hub_errors() as error:
            raise DataError(f"{field} {source}: the download failed ({error}); try `{source.fetch_command}`") from error
        if not files:
            raise DataError(f"{field} {source}: {source.repo} has no such file")
        return files
    cached = cached_hub_files(source)
    if not cached:
        raise DataError(
            f"{field} {source}: not found. Not in the Hugging Face cache {constants.HF_HUB_CACHE}; "
            f"{constants.ENDPOINT}: {answer.refusal}. Where there is a network, run `{source.fetch_command}`"
        )
    if not answer.answered:
        go_offline()
    return cached


def cached_hub_files(source: HubFiles) -> list[Path]:
    """Return the files that the cache holds. Does not ask the hub."""
    with contextlib.suppress(OSError, ValueError):  # not cached
        return _snapshot_files(source, local_files_only=True)
    return []


def _snapshot_files(source: HubFiles, local_files_only: bool = False) -> list[Path]:
    from huggingface_hub import snapshot_download

    snapshot = Path(
        snapshot_download(
            source.repo,
            repo_type="dataset",
            revision=source.revision,
            allow_patterns=source.pattern,
            local_files_only=local_files_only,
        )
    )
    files = [path for path in snapshot.rglob("*") if os.path.isfile(path)]
    return sorted(path for path in files if fnmatch.fnmatchcase(str(path.relative_to(snapshot)), source.pattern))
