"""Find a model, and ask the Hugging Face hub with a deadline: a machine without a network waits seconds, not minutes.

model.path ─► a directory ─► taken
          └─► a local path that does not exist ─► refused
          └─► a repo id, maybe with @REVISION ─► in the cache? does the hub answer within seconds? ─► neither: refused,
                                                 saying all three
"""

import os
import re
import shlex
import threading
from pathlib import Path

from msgspec import Struct

from arl.errors import DataError

COMMIT = re.compile("[0-9a-f]{40}")
HUB_SECONDS = 5.0  # for one question; libraries retry for a minute


class HubAnswer(Struct, frozen=True):
    """Say which commit a revision is, or why the hub does not give it."""

    commit: str | None = None
    refusal: str = ""  # as in "answers 404 Not Found"; empty: there is none
    answered: bool = True  # the hub is there


def ask_hub(repo: str, kind: str, revision: str | None = None) -> HubAnswer:
    """Ask the hub which commit a revision of a repository is.

    A thread asks, because looking up the hub's address has no deadline of its own.

    Args:
        kind: model or dataset.
        revision: branch, tag or commit; None: the main branch.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError

    if constants.HF_HUB_OFFLINE:
        return HubAnswer(refusal="not asked, because HF_HUB_OFFLINE is set", answered=False)
    answers: list[HubAnswer] = []

    def ask() -> None:
        try:
            info = HfApi().repo_info(repo, repo_type=kind, revision=revision, timeout=2 * HUB_SECONDS)
            answers.append(HubAnswer(info.sha))
        except HfHubHTTPError as error:
            answers.append(HubAnswer(refusal=_refusal(error.response.status_code, error.response.reason_phrase)))
        except hub_errors() as error:
            answers.append(HubAnswer(refusal=f"cannot be reached ({error})", answered=False))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(HUB_SECONDS)
    return answers[0] if answers else HubAnswer(refusal=f"no answer within {HUB_SECONDS:g} s", answered=False)


def _refusal(status: int, reason: str) -> str:
    if status in (401, 403):
        return f"answers {status}: no such repository, or one that needs a login (`hf auth login`)"
    return f"answers {status} {reason}"


def hub_commit(repo: str, kind: str, revision: str) -> str | None:
    """Return the commit that a revision is: by the hub, else by the cache of downloads; None: neither knows it."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    answer = ask_hub(repo, kind, revision)
    if answer.commit is not None:
        return answer.commit
    reference = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=repo, repo_type=kind), "refs", revision)
    return reference.read_text().strip() if os.path.isfile(reference) else None


def hub_errors() -> tuple[type[BaseException], ...]:
    """Return what huggingface_hub raises where the hub does not answer, or says no.

    Its own error is derived from that of its HTTP client, which is another package in another version.
    """
    from huggingface_hub.errors import HfHubHTTPError

    return (*HfHubHTTPError.__bases__, OSError, ValueError)


def go_offline() -> None:
    """Keep this process and its children from asking the hub again: each file would wait for the hub's retries."""
    from huggingface_hub import constants

    constants.HF_HUB_OFFLINE = True
    os.environ["HF_HUB_OFFLINE"] = "1"


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
    return path if os.path.isdir(path) else snapshot_of(path, DESCRIPTION)


def snapshot_of(path: str, patterns: list[str]) -> str:
    """Return the directory in the Hugging Face cache with the files of a model; downloads what it lacks.

    Args:
        path: Hugging Face repo id, maybe with @REVISION.
        patterns: names of the files that are needed.

    Raises:
        OSError, ValueError: they are neither on the hub nor in the cache.
    """
    from huggingface_hub import snapshot_download

    name, revision = split_revision(path)
    return str(snapshot_download(name, revision=revision, allow_patterns=patterns))


def check_model_source(path: str) -> str | None:
    """Refuse a model that is nowhere. Return a note if the hub does not give it, and the cache has it.

    If the hub does not answer, this process no longer asks it. A hub that answers is asked for other things.

    Args:
        path: directory, or Hugging Face repo id such as Qwen/Qwen2.5-0.5B-Instruct, maybe with @REVISION.

    Raises:
        DataError: says which directory, which cache and which address were looked at, and what each of them said.
    """
    if os.path.isdir(path):
        if not os.path.exists(Path(path) / "config.json"):
            raise DataError(f"model.path {path}: has no config.json; give a directory that save_pretrained has written")
        return None
    name, revision = split_revision(path)
    where = Path(path).absolute()
    if is_local(name):
        raise DataError(f"model.path {path}: there is no directory {where}{_siblings(where.parent)}")
    from huggingface_hub import constants, try_to_load_from_cache

    cached = isinstance(try_to_load_from_cache(name, "config.json", revision=revision), str)
    if cached and constants.HF_HUB_OFFLINE:
        return None
    answer = ask_hub(name, "model", revision)
    if not answer.refusal:
        return None
    cache = f"the Hugging Face cache {constants.HF_HUB_CACHE}"
    if not cached:
        command = shlex.join(["hf", "download", name, *(["--revision", revision] if revision else [])])
        raise DataError(
            f"model.path {path}: not found. No directory {where}; not in {cache}; {constants.ENDPOINT}: "
            f"{answer.refusal}. Give a directory, or run `{command}` where there is a network"
        )
    if not answer.answered:
        go_offline()
    return f"model.path {path}: {constants.ENDPOINT} {answer.refusal}, so the copy in {cache} is used"


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


def _siblings(directory: Path) -> str:
    """Say which directories lie where one was looked for."""
    if not os.path.isdir(directory):
        return f", nor {directory}"
    names = sorted(name for name in os.listdir(directory) if os.path.isdir(directory / name))
    return f"; {directory} has {', '.join(names[-8:]) or 'no directories'}"
