"""Find a model or files of a data set, and ask the Hugging Face hub with a deadline.

A machine without a network waits seconds for it, not minutes.

model.path ─► a directory ─► taken
          └─► a local path that does not exist ─► refused
          └─► a repo id, maybe with @REVISION ─► in the cache? does the hub answer within seconds? ─► neither: refused,
                                                 saying all three

data.path ─► a file ─► taken
         └─► a glob ─► every file that it matches, by name
         └─► hf://datasets/owner/repo/glob ─► likewise: download what the cache lacks, or take what it has
"""

import contextlib
import fnmatch
import glob
import os
import re
import shlex
import threading
from collections.abc import Iterable, Sequence
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
            status = error.response.status_code
            login = ": no such repository, or one that needs a login (`hf auth login`)" if status in (401, 403) else ""
            answers.append(HubAnswer(refusal=f"answers {status}{login}"))
        except hub_errors() as error:
            answers.append(HubAnswer(refusal=f"cannot be reached ({error})", answered=False))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(HUB_SECONDS)
    return answers[0] if answers else HubAnswer(refusal=f"no answer within {HUB_SECONDS:g} s", answered=False)


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


# Files that say how a model and its tokenizer are built. Not *.json: a directory may hold the index of weights, a
# trainer's state or a user's own notes as well.
CONFIGS = ("config.json", "generation_config.json", "chat_template.json")
TEMPLATES = ("*.jinja", "additional_chat_templates/*.jinja")
TOKENIZERS = ("tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt")
OTHER_TOKENIZERS = ("merges.txt", "*.model", "*.tiktoken", "tekken.json")  # of BPE, sentencepiece, OpenAI, Mistral
CODE = ("configuration_*.py", "modeling_*.py", "tokenization_*.py")  # that configs name; arl runs none of it
SOURCE = "arl_source.json"  # see arl.models.model_files
DESCRIPTION = (*CONFIGS, *TEMPLATES, *TOKENIZERS, *OTHER_TOKENIZERS, *CODE, SOURCE)


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


def snapshot_of(path: str, patterns: Sequence[str]) -> str:
    """Return the directory in the Hugging Face cache with the files of a model; downloads what it lacks.

    Args:
        path: Hugging Face repo id, maybe with @REVISION.
        patterns: names of the files that are needed.

    Raises:
        OSError, ValueError: they are neither on the hub nor in the cache.
    """
    from huggingface_hub import snapshot_download

    name, revision = split_revision(path)
    return str(snapshot_download(name, revision=revision, allow_patterns=list(patterns)))


def check_model_source(path: str, field: str = "model.path") -> str | None:
    """Refuse a model that is nowhere. Return a note if the hub does not give it, and the cache has it.

    If the hub does not answer, this process no longer asks it. A hub that answers is asked for other things.

    Args:
        path: directory, or Hugging Face repo id such as Qwen/Qwen2.5-0.5B-Instruct, maybe with @REVISION.
        field: that names it.

    Raises:
        DataError: says which directory, which cache and which address were looked at, and what each of them said.
    """
    if os.path.isdir(path):
        if not os.path.exists(Path(path) / "config.json"):
            raise DataError(f"{field} {path}: has no config.json; give a directory that save_pretrained has written")
        return None
    name, revision = split_revision(path)
    where = Path(path).absolute()
    if is_local(name):
        beside = (found.name for found in where.parent.glob("*/"))
        download = "" if name.startswith(("/", ".")) else f"; a model of the hub: run `hf download {name}` first"
        there = _siblings(where.parent, "directories", beside)
        raise DataError(f"{field} {path}: there is no directory {where}{there}{download}")
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
            f"{field} {path}: not found. No directory {where}; not in {cache}; {constants.ENDPOINT}: "
            f"{answer.refusal}. Give a directory, or run `{command}` where there is a network"
        )
    if not answer.answered:
        go_offline()
    return f"{field} {path}: {constants.ENDPOINT} {answer.refusal}, so the copy in {cache} is used"


def is_local(path: str) -> bool:
    """Return whether it is a path and no repo id: by its form, or because the directory around it exists.

    A repo that was downloaded stays one, because a working directory may well have a folder of its owner's name.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.file_download import repo_folder_name
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    with contextlib.suppress(HFValidationError):
        validate_repo_id(path)
        cached = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=path, repo_type="model"))
        return "/" in path and os.path.isdir(Path(path).parent) and not os.path.isdir(cached)
    return True


def _siblings(directory: Path, kind: str, names: Iterable[str]) -> str:
    """Say what lies where something was looked for."""
    if not os.path.isdir(directory):
        return f", nor a directory {directory}"
    return f"; {directory} has {', '.join(sorted(names)[-8:]) or f'no {kind}'}"


# ---- files of data sets

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
        raise DataError(
            f"{what}: {others[0].name} is not {', '.join(SUFFIXES)}: give jsonl or parquet files, as `gunzip --keep` "
            "or pandas.read_csv(FILE).to_json(NEW, orient='records', lines=True) write them"
        )
    return files


def _local(spec: str, what: str) -> list[Path]:
    path = Path(spec)
    if os.path.isfile(path):
        return [path]
    if os.path.isdir(path):
        raise DataError(f"{what}: is a directory; give a file, or a glob as in {path}/*.parquet")
    if glob.has_magic(str(path)):
        *directories, pattern = path.parts
        base = Path()
        while directories and os.path.isdir(base / directories[0]):  # as it stands, [ ], * and ? included
            base /= directories.pop(0)
        names = glob.glob(str(Path(*directories, pattern)), root_dir=base, recursive=True)
        found = sorted(base / name for name in names if os.path.isfile(base / name))
        if not found:
            brackets = "; [ ] stands for one of the characters in it, [[] for a bracket" if "[" in spec else ""
            raise DataError(f"{what}: matches no file; looked in {base.absolute()}{brackets}")
        return found
    directory = path.absolute().parent
    beside = (found.name for found in directory.glob("*") if found.suffix in SUFFIXES)
    raise DataError(f"{what}: there is no file {path.absolute()}{_siblings(directory, 'jsonl and no parquet', beside)}")


PREFIX = "hf://"
_NOTATION = re.compile(r"hf://datasets/(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[^/]+))?/(?P<pattern>.+)")


class HubFiles(Struct, frozen=True):
    """Name files of a data set on the hub, or a model."""

    repo: str  # owner/name
    pattern: str  # path in the repository; may hold * and ?; empty: a model, of all its files
    revision: str = "main"

    def __str__(self) -> str:
        at = "" if self.revision == "main" else f"@{self.revision}"
        return f"{PREFIX}datasets/{self.repo}{at}/{self.pattern}" if self.pattern else f"{self.repo}{at}"

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
