"""Find out where a model is, before anything tries to load it: a directory, the Hugging Face cache, or the hub.

model.path ─► a directory ─► taken
          └─► a local path that does not exist ─► refused
          └─► a repo id ─► in the cache? does the hub answer within seconds? ─► neither: refused, saying all three
"""

import http.client
import os
import threading
import urllib.error
import urllib.request
from pathlib import Path

from arl.errors import DataError

HUB_SECONDS = 5.0  # for one HEAD request; libraries retry for a minute


def check_model_source(path: str) -> None:
    """Refuse a model that is nowhere. A cached model whose hub does not answer is loaded from the cache alone.

    Args:
        path: directory, or Hugging Face repo id such as Qwen/Qwen2.5-0.5B-Instruct.

    Raises:
        DataError: says which directory, which cache and which address were looked at, and what each of them said.
    """
    if Path(path).is_dir():
        return
    if _is_local(path):
        raise DataError(f"model.path {path}: there is no directory {Path(path).absolute()}{_siblings(Path(path))}")
    from huggingface_hub import constants

    cached = _is_cached(path)
    if cached and constants.HF_HUB_OFFLINE:
        return
    refusal = _ask_hub(path)
    if not refusal:
        return
    if not cached:
        raise DataError(
            f"model.path {path}: not found. No directory {Path(path).absolute()}; not in the Hugging Face cache "
            f"{constants.HF_HUB_CACHE}; {constants.ENDPOINT}: {refusal}. Give a directory, or run "
            f"`hf download {path}` where there is a network"
        )
    constants.HF_HUB_OFFLINE = True  # otherwise each file would wait for the hub's retries
    os.environ["HF_HUB_OFFLINE"] = "1"  # for the processes of the run


def _is_cached(repo_id: str) -> bool:
    """Return whether the model's config is in the Hugging Face cache."""
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(repo_id, "config.json"), str)


def _is_local(path: str) -> bool:
    """Return whether it is a path and no repo id: by its form, or because the directory around it exists."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    if "/" in path and Path(path).parent.is_dir():
        return True
    try:
        validate_repo_id(path)
    except HFValidationError:
        return True
    return False


def _siblings(path: Path) -> str:
    """Say which directories lie beside a path that does not exist."""
    parent = path.absolute().parent
    if not parent.is_dir():
        return f", nor {parent}"
    names = sorted(entry.name for entry in parent.iterdir() if entry.is_dir())
    return f"; {parent} has {', '.join(names[-8:]) or 'no directories'}"


def _ask_hub(repo_id: str) -> str:
    """Ask the hub for the model's config. Return what is wrong; empty if nothing is.

    A thread asks, because looking up the hub's address has no deadline of its own.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "not asked, because HF_HUB_OFFLINE is set"
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.append(_head(repo_id)), daemon=True)
    asking.start()
    asking.join(HUB_SECONDS)
    return answers[0] if answers else f"no answer within {HUB_SECONDS:g} s"


def _head(repo_id: str) -> str:
    """Send the request of `_ask_hub`."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    request = urllib.request.Request(
        hf_hub_url(repo_id, "config.json"),
        method="HEAD",
        headers=build_hf_headers(),
    )
    try:
        urllib.request.urlopen(request, timeout=HUB_SECONDS).close()
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            return f"answers {error.code}: no such model, or one that needs a login (`hf auth login`)"
        return f"answers {error.code} {error.reason}"
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"cannot be reached ({error})"
    return ""
