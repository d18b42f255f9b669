"""Pin what a recipe names on the Hugging Face hub to the commits that it is now, so that a run can be repeated.

model.path OWNER/NAME ─► OWNER/NAME@COMMIT        data.path hf://datasets/OWNER/REPO/… ─► hf://datasets/OWNER/REPO@COMMIT/…

RUN/recipe.yaml keeps the commits. A resumed run takes them from there, whatever the hub has by then.
"""

import os

from msgspec import structs

from arl.config.recipe import Recipe
from arl.data.hub import COMMIT, hub_commit
from arl.data.hub_files import PREFIX, HubFiles, parse_hub_files
from arl.data.model_source import is_local, split_revision

DATA_FIELDS = ("path", "eval_path")


def pin_sources(recipe: Recipe, recorded: Recipe | None = None) -> Recipe:
    """Return the recipe with commits in the place of branches and tags. What nobody knows stays as it is.

    Args:
        recorded: the recipe of the run that is resumed, whose commits are taken where it names the same repositories.

    Raises:
        DataError: a data path has another form than the hub's.
    """
    model = _pin_model(recipe.model.path, None if recorded is None else recorded.model.path)
    data = {}
    for field in DATA_FIELDS:
        known = None if recorded is None else getattr(recorded.data, field)
        data[field] = _pin_data(getattr(recipe.data, field), known, f"data.{field}")
    pinned = recipe
    if model != recipe.model.path:
        pinned = pinned.model_copy(update={"model": recipe.model.model_copy(update={"path": model})})
    if any(path != getattr(recipe.data, field) for field, path in data.items()):
        pinned = pinned.model_copy(update={"data": recipe.data.model_copy(update=data)})
    return pinned


def _pin_model(path: str | None, recorded: str | None) -> str | None:
    if path is None or os.path.isdir(path):
        return path
    name, revision = split_revision(path)
    if is_local(name):
        return path
    if recorded is not None and split_revision(recorded)[0] == name:
        commit = split_revision(recorded)[1]
    else:
        commit = hub_commit(name, "model", revision)
    return path if commit is None or _is_commit(revision) else f"{name}@{commit}"


def _pin_data(path: str | None, recorded: str | None, field: str) -> str | None:
    if path is None or not path.startswith(PREFIX):
        return path
    files = parse_hub_files(path, field)
    known = _recorded_files(recorded, field)
    if known is not None and (known.repo, known.pattern) == (files.repo, files.pattern):
        commit: str | None = known.revision
    else:
        commit = hub_commit(files.repo, "dataset", files.revision)
    return path if commit is None or _is_commit(files.revision) else str(structs.replace(files, revision=commit))


def _recorded_files(path: str | None, field: str) -> HubFiles | None:
    return parse_hub_files(path, field) if path is not None and path.startswith(PREFIX) else None


def _is_commit(revision: str | None) -> bool:
    return revision is not None and COMMIT.fullmatch(revision) is not None
