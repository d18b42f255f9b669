"""Ask the Hugging Face hub with a deadline, so that a machine without a network waits seconds and not minutes."""

import os
import re
import threading
from pathlib import Path

from msgspec import Struct

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
