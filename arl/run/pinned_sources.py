"""Pin what a recipe names on the Hugging Face hub to the commits that it is now, so that a run can be repeated.

model.path OWNER/NAME ─► OWNER/NAME@COMMIT        data.path hf://datasets/OWNER/REPO/… ─► hf://datasets/OWNER/REPO@COMMIT/…

RUN/recipe.yaml keeps the commits, and RUN/sources.json what the recipe named. A resumed run that names the same takes
the commits from there, whatever the hub has by then.
"""

import os
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from arl.config.recipe import Recipe
from arl.config.recipe_file import load_recipe
from arl.data.hub import COMMIT, hub_commit
from arl.data.hub_files import PREFIX, parse_hub_files
from arl.data.model_source import is_local, split_revision
from arl.errors import DataError, InputError
from arl.launch.disk import writing
from arl.launch.durable import replace_file
from arl.metrics.run_files import RECIPE, SOURCES

DATA_FIELDS = ("path", "eval_path")
MAIN = "main"  # the branch that a name without a revision is of


class Pinned(Struct, frozen=True):
    """Hold a recipe with commits in the place of branches and tags."""

    recipe: Recipe
    named: dict[str, str]  # field -> what stood there, where a commit has taken its place
    notes: tuple[str, ...] = ()  # about what could not be pinned


class RecordedSources(Struct, frozen=True):
    """Hold what a run that is resumed was made with."""

    directory: Path
    recipe: Recipe
    named: dict[str, str]


class _Source(Struct, frozen=True):
    """Hold one name of the hub in a recipe."""

    field: str  # as in model.path
    kind: str  # model or dataset
    repo: str
    revision: str  # branch, tag or commit
    files: str = ""  # of a data set

    @property
    def path(self) -> str:
        """Return it as a recipe writes it."""
        return self.at(self.revision)

    @property
    def is_pinned(self) -> bool:
        """Return whether it names a commit."""
        return COMMIT.fullmatch(self.revision) is not None

    def at(self, revision: str) -> str:
        """Return it at another revision, as a recipe writes it."""
        at = "" if revision == MAIN else f"@{revision}"
        return f"{PREFIX}datasets/{self.repo}{at}/{self.files}" if self.files else f"{self.repo}{at}"


def pin_sources(recipe: Recipe, recorded: RecordedSources | None = None) -> Pinned:
    """Put commits in the place of branches and tags. What nobody knows stays as it is, with a note.

    Args:
        recorded: of the run that is resumed, whose commits are taken where the recipe names the same.

    Raises:
        DataError: a data path has another form than the hub's.
        InputError: the run that is resumed was made with another branch of the same repository.
    """
    pinned = recipe
    named = {}
    notes = []
    for source in _sources(recipe):
        if source.is_pinned:
            continue
        before = None if recorded is None else _same_source(source, recorded.recipe)
        if recorded is not None and before is not None:
            _refuse_other_branch(source, before, recorded)
            commit = before.revision if before.is_pinned else None
        else:
            commit = hub_commit(source.repo, source.kind, source.revision)
        if commit is None:
            notes.append(
                f"{source.field} {source.path}: neither the hub nor the cache says which commit it is, so it is not "
                "pinned, and a resumed run may read another one"
            )
            continue
        named[source.field] = source.path
        pinned = _replaced(pinned, source.field, source.at(commit))
    return Pinned(pinned, named, tuple(notes))


def write_named(directory: Path, named: dict[str, str]) -> None:
    """Record in a new run what its recipe named.

    Raises:
        DiskError: it cannot be written.
    """
    file = directory / SOURCES
    with writing(file):
        replace_file(file, msgspec.json.encode(named))


def read_recorded(directory: Path) -> RecordedSources:
    """Read what a run was made with.

    Raises:
        InputError: its files are damaged.
    """
    recipe = load_recipe(directory / RECIPE)
    file = directory / SOURCES
    named: dict[str, str] = {}
    try:
        named = msgspec.json.decode(file.read_bytes(), type=dict[str, str])
    except FileNotFoundError:  # its recipe names commits, or nothing of the hub
        pass
    except (OSError, msgspec.DecodeError) as error:
        raise DataError(f"{file}: is damaged ({error}); restore it, or start a new run without --resume") from error
    return RecordedSources(directory, recipe, named)


def _sources(recipe: Recipe) -> list[_Source]:
    """List what a recipe names on the hub."""
    sources = []
    path = recipe.model.path
    if path is not None and not os.path.isdir(path):
        name, revision = split_revision(path)
        if not is_local(name):
            sources.append(_Source("model.path", "model", name, revision or MAIN))
    for name in DATA_FIELDS:
        spec = getattr(recipe.data, name)
        if spec is not None and spec.startswith(PREFIX):
            field = f"data.{name}"
            files = parse_hub_files(spec, field)
            sources.append(_Source(field, "dataset", files.repo, files.revision, files.pattern))
    return sources


def _same_source(source: _Source, recipe: Recipe) -> _Source | None:
    """Return what another recipe names in the same field, if only the revision may differ."""
    for other in _sources(recipe):
        if structs.replace(other, revision=source.revision) == source:
            return other
    return None


def _refuse_other_branch(source: _Source, before: _Source, recorded: RecordedSources) -> None:
    named = recorded.named.get(source.field, before.path)
    if named != source.path:
        raise InputError(
            f"{source.field} = {source.path!r}: {recorded.directory} was made with {named!r}; resume with that, or "
            "start a new run without --resume"
        )


def _replaced(recipe: Recipe, field: str, path: str) -> Recipe:
    section, _, name = field.partition(".")
    changed = getattr(recipe, section).model_copy(update={name: path})
    return recipe.model_copy(update={section: changed})
