"""Pin what a recipe names on the Hugging Face hub to the commits that it is now, so that a run can be repeated.

model.path OWNER/NAME ─► OWNER/NAME@COMMIT        data.path hf://datasets/OWNER/REPO/… ─► hf://datasets/OWNER/REPO@COMMIT/…

RUN/recipe.yaml keeps the commits, and a resumed run takes them from there, whatever the hub has by then.
"""

import os
from pathlib import Path

from msgspec import structs

from arl.config.recipe import Recipe
from arl.config.recipe_file import load_recipe
from arl.data.hub import COMMIT, hub_commit, is_local, split_revision
from arl.data.source_files import PREFIX, HubFiles, parse_hub_files
from arl.metrics.run_files import RECIPE

FIELDS = ("model.path", "data.path", "data.eval_path")
MAIN = "main"  # the branch that a name without a revision is of


def pin_sources(recipe: Recipe, resumed: Path | None = None) -> tuple[Recipe, list[str]]:
    """Put commits in the place of branches and tags. What neither hub nor cache knows stays as it is, with a note.

    Args:
        resumed: directory of the run that goes on, whose commits are taken where it names the same repository.

    Raises:
        DataError: a data path has another form than the hub's.
    """
    recorded = None if resumed is None else load_recipe(resumed / RECIPE)
    notes = []
    for field in FIELDS:
        source = _source(recipe, field)
        if source is None or COMMIT.fullmatch(source.revision):
            continue
        before = None if recorded is None else _source(recorded, field)
        if before is not None and (before.repo, before.pattern) == (source.repo, source.pattern):
            commit: str | None = before.revision
            if source.revision not in (MAIN, commit):
                notes.append(f"{field} {_path(source)}: the run goes on with {_path(before)}, which it began with")
        else:
            commit = hub_commit(source.repo, "dataset" if source.pattern else "model", source.revision)
        if commit is None:
            notes.append(
                f"{field} {_path(source)}: neither the hub nor the cache says which commit it is, so it is not pinned, "
                "and a resumed run may read another one"
            )
            continue
        section, _, name = field.partition(".")
        path = _path(structs.replace(source, revision=commit))
        changed = getattr(recipe, section).model_copy(update={name: path})
        recipe = recipe.model_copy(update={section: changed})
    return recipe, notes


def _source(recipe: Recipe, field: str) -> HubFiles | None:
    """Return what a field names on the hub; of a model, all files. None: something else."""
    section, _, name = field.partition(".")
    path: str | None = getattr(getattr(recipe, section), name)
    if path is None:
        return None
    if section == "data":
        return parse_hub_files(path, field) if path.startswith(PREFIX) else None
    repo, revision = split_revision(path)
    return None if os.path.isdir(path) or is_local(repo) else HubFiles(repo, "", revision or MAIN)


def _path(source: HubFiles) -> str:
    """Write it as a recipe does."""
    if source.pattern:
        return str(source)
    return source.repo if source.revision == MAIN else f"{source.repo}@{source.revision}"
