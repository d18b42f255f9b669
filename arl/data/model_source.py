"""Find out where a model is, before anything tries to load it: a directory, the Hugging Face cache, or the hub.

model.path ─► a directory ─► taken
          └─► a local path that does not exist ─► refused
          └─► a repo id ─► in the cache? does the hub answer within seconds? ─► neither: refused, saying all three
"""

from pathlib import Path

from arl.data.hub import go_offline, hub_refusal
from arl.data.model_directory import check_model_directory
from arl.errors import DataError


def check_model_source(path: str) -> None:
    """Refuse a model that is nowhere, or damaged.

    A cached model whose hub does not answer is loaded from the cache alone.

    Args:
        path: directory, or Hugging Face repo id such as Qwen/Qwen2.5-0.5B-Instruct.

    Raises:
        DataError: says which directory, which cache and which address were looked at, and what each of them said.
    """
    if Path(path).is_dir():
        check_model_directory(Path(path))
        return
    if _is_local(path):
        raise DataError(f"model.path {path}: there is no directory {Path(path).absolute()}{_siblings(Path(path))}")
    from huggingface_hub import constants, hf_hub_url

    cached = _is_cached(path)
    if cached and constants.HF_HUB_OFFLINE:
        return
    refusal = hub_refusal(hf_hub_url(path, "config.json"))
    if refusal is None:
        return
    if not cached:
        raise DataError(
            f"model.path {path}: not found. No directory {Path(path).absolute()}; not in the Hugging Face cache "
            f"{constants.HF_HUB_CACHE}; {constants.ENDPOINT}: {refusal}. Give a directory, or run "
            f"`hf download {path}` where there is a network"
        )
    go_offline()


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
