"""Find out where a model is, before anything tries to load it: a directory, the Hugging Face cache, or the hub.

model.path ─► a directory ─► taken
          └─► a local path that does not exist ─► refused
          └─► a repo id, maybe with @REVISION ─► in the cache? does the hub answer within seconds? ─► neither: refused,
                                                 saying all three
"""

import os
import shlex
import stat
from pathlib import Path

from arl.data.hub import go_offline, hub_refusal
from arl.data.model_directory import check_model_directory
from arl.data.source_files import file_mode
from arl.errors import DataError

DESCRIPTION = ["*.json", "*.txt", "*.jinja", "tokenizer.model"]  # files of config and tokenizer


def split_revision(path: str) -> tuple[str, str | None]:
    """Split a Hugging Face name from the branch, tag or commit behind it; None: it names none, or is a directory.

    >>> split_revision("Qwen/Qwen2.5-0.5B-Instruct@7ae5576"), split_revision("Qwen/Qwen2.5-0.5B-Instruct")
    (('Qwen/Qwen2.5-0.5B-Instruct', '7ae5576'), ('Qwen/Qwen2.5-0.5B-Instruct', None))
    """
    name, at, revision = path.partition("@")
    if not at or os.path.isdir(path):
        return path, None
    return name, revision


def description_of(path: str) -> str:
    """Return a directory with config and tokenizer of a model: `path` itself if it is one.

    Raises:
        OSError, ValueError: they are neither on the hub nor in the cache.
    """
    if os.path.isdir(path):
        return path
    return snapshot_of(path, DESCRIPTION)


def snapshot_of(path: str, patterns: list[str]) -> str:
    """Return the directory in the Hugging Face cache with the files of a model; downloads what it lacks.

    The cached copy is taken where the hub no longer has the revision, which `check_model_source` has noted.

    Args:
        path: Hugging Face repo id, maybe with @REVISION.
        patterns: names of the files that are needed.

    Raises:
        OSError, ValueError: they are neither on the hub nor in the cache.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError, RevisionNotFoundError

    name, revision = split_revision(path)
    try:
        return str(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except RevisionNotFoundError as error:
        try:
            return str(snapshot_download(name, revision=revision, allow_patterns=patterns, local_files_only=True))
        except LocalEntryNotFoundError:
            raise error from None


def check_model_source(path: str) -> str | None:
    """Refuse a model that is nowhere, or damaged. Return a note if the hub does not give it, and the cache has it.

    If the hub does not answer, this process no longer asks it. A hub that answers is asked for other things.

    Args:
        path: directory, or Hugging Face repo id such as Qwen/Qwen2.5-0.5B-Instruct, maybe with @REVISION.

    Raises:
        DataError: says which directory, which cache and which address were looked at, and what each of them said.
    """
    if stat.S_ISDIR(file_mode(Path(path), f"model.path {path}")):
        check_model_directory(Path(path))
        return None
    name, revision = split_revision(path)
    if is_local(name):
        raise DataError(f"model.path {path}: there is no directory {Path(path).absolute()}{_siblings(Path(path))}")
    from huggingface_hub import constants, hf_hub_url

    cached = _is_cached(name, revision)
    if cached and constants.HF_HUB_OFFLINE:
        return None
    refusal = hub_refusal(hf_hub_url(name, "config.json", revision=revision))
    if refusal is None:
        return None
    if not cached:
        raise DataError(
            f"model.path {path}: not found. No directory {Path(path).absolute()}; not in the Hugging Face cache "
            f"{constants.HF_HUB_CACHE}; {constants.ENDPOINT}: {refusal}. Give a directory, or run "
            f"`{_fetch_command(name, revision)}` where there is a network"
        )
    if not refusal.answered:
        go_offline()
    return (
        f"model.path {path}: {constants.ENDPOINT} {refusal}, so the copy in the Hugging Face cache "
        f"{constants.HF_HUB_CACHE} is used"
    )


def _fetch_command(name: str, revision: str | None) -> str:
    words = ["hf", "download", name, *(["--revision", revision] if revision else [])]
    return shlex.join(words)


def _is_cached(repo_id: str, revision: str | None) -> bool:
    """Return whether the model's config is in the Hugging Face cache."""
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(repo_id, "config.json", revision=revision), str)


def is_local(path: str) -> bool:
    """Return whether it is a path and no repo id: by its form, or because the directory around it exists."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    if "/" in path and os.path.isdir(Path(path).parent):
        return True
    try:
        validate_repo_id(path)
    except HFValidationError:
        return True
    return False


def _siblings(path: Path) -> str:
    """Say which directories lie beside a path that does not exist."""
    parent = path.absolute().parent
    if not os.path.isdir(parent):
        return f", nor {parent}"
    try:
        names = sorted(entry.name for entry in parent.iterdir() if os.path.isdir(entry))
    except OSError as error:
        return f"; {parent} cannot be listed ({error.strerror})"
    return f"; {parent} has {', '.join(names[-8:]) or 'no directories'}"
