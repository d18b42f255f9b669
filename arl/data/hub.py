"""Ask the Hugging Face hub with a deadline, so that a machine without a network waits seconds and not minutes."""

import contextlib
import http.client
import os
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

T = TypeVar("T")

COMMIT = re.compile("[0-9a-f]{40}")
HUB_SECONDS = 5.0  # for one request; libraries retry for a minute


class Refusal(Struct, frozen=True):
    """Say why the hub cannot give something."""

    cause: str  # as in "answers 404 Not Found"
    answered: bool  # the hub is there, and said no

    def __str__(self) -> str:
        return self.cause


def hub_refusal(url: str, method: str = "HEAD") -> Refusal | None:
    """Ask the hub for an address, and read no body. Return what is wrong; None if nothing is.

    A thread asks, because looking up the hub's address has no deadline of its own.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return Refusal("not asked, because HF_HUB_OFFLINE is set", answered=False)
    answers: list[Refusal | None] = []
    if not within(HUB_SECONDS, lambda: answers.append(_ask(url, method))):
        return _no_answer()
    return answers[0]


def hub_errors() -> tuple[type[BaseException], ...]:
    """Return what huggingface_hub raises where the hub does not answer, or says no.

    Its own error is derived from that of its HTTP client, which is another package in another version.
    """
    from huggingface_hub.errors import HfHubHTTPError

    return (*HfHubHTTPError.__bases__, OSError, ValueError)


def hub_commit(repo: str, kind: str, revision: str | None) -> str | None:
    """Return the commit that a revision is: by the hub, else by the cache of downloads; None: neither knows it.

    Args:
        kind: model or dataset.
        revision: branch, tag or commit; None: the main branch.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.file_download import repo_folder_name

    if revision is not None and COMMIT.fullmatch(revision):
        return revision
    commits: list[str | None] = []

    def ask() -> None:
        with contextlib.suppress(*hub_errors()):  # the cache may know it
            found = HfApi().repo_info(repo, repo_type=kind, revision=revision, timeout=HUB_SECONDS)
            commits.append(found.sha)

    if not constants.HF_HUB_OFFLINE and within(HUB_SECONDS, ask) and commits:
        return commits[0]
    folder = repo_folder_name(repo_id=repo, repo_type=kind)
    try:
        found = (Path(constants.HF_HUB_CACHE) / folder / "refs" / (revision or "main")).read_text().strip()
    except (OSError, ValueError):
        return None
    return found if COMMIT.fullmatch(found) else None


def _no_answer() -> Refusal:
    return Refusal(f"no answer within {HUB_SECONDS:g} s", answered=False)


def go_offline() -> None:
    """Keep this process and its children from asking the hub again: each file would wait for the hub's retries."""
    from huggingface_hub import constants

    constants.HF_HUB_OFFLINE = True
    os.environ["HF_HUB_OFFLINE"] = "1"


def within(seconds: float, call: Callable[[], object]) -> bool:
    """Call a function that must not raise in a thread. Return whether it has ended within `seconds`."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def _ask(url: str, method: str) -> Refusal | None:
    """Send the request of `hub_refusal`."""
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    request = urllib.request.Request(url, method=method, headers=build_hf_headers())
    try:
        urllib.request.urlopen(request, timeout=HUB_SECONDS).close()
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            cause = f"answers {error.code}: no such repository, or one that needs a login (`hf auth login`)"
        else:
            cause = f"answers {error.code} {error.reason}"
        return Refusal(cause, answered=True)
    except (OSError, ValueError, http.client.HTTPException) as error:
        cause_of_it = getattr(error, "reason", error)  # urllib wraps what went wrong before the request was sent
        if isinstance(cause_of_it, TimeoutError):
            return _no_answer()
        return Refusal(f"cannot be reached ({error})", answered=False)
    return None
