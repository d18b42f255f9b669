"""Write, read and show what an evaluation leaves: the protocol by which scores may be compared, samples and scores.

    Suite, engine, tokenizer ─► protocol ─► fingerprint     scores of one protocol share a table; others never do

<suite>.json       protocol and model: written first, compared when it is continued
<suite>.jsonl      a line for each sample, appended as soon as it is scored
scores.json        the scores of every finished suite, for machines
"""

import contextlib
import hashlib
import inspect
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import arl
from arl.config.imports import import_function
from arl.data.tokenizer import HuggingFaceCodec
from arl.engine.backend import Installation
from arl.errors import DataError, InputError
from arl.files import replace_file, require_lock, try_lock
from arl.run.evaluation.scores import Estimate, Sample, SuiteScore
from arl.run.evaluation.suite import Suite

Fields = dict[str, Any]
SCORES = "scores.json"
LOCK = ".lock"
WEIGHTS = "model*.safetensors"
DESCRIPTIONS = ("config.json", "generation_config.json", "tokenizer*.json", "vocab.json", "merges.txt", "*.jinja")
BLOCKS = 256  # of each file of weights
BLOCK = 64 * 1024  # bytes
FILE_WIDTH = 120  # columns of tables, where the output is not a terminal
MAX_VALUE_WIDTH = 60  # characters of a value that differs


class Scored(Struct, frozen=True, kw_only=True):
    """Hold one entry of scores.json."""

    model: Fields
    fingerprint: str  # of the protocol
    protocol: Fields
    score: SuiteScore


def identify(name: str, directory: Path) -> Fields:
    """Identify the model in `directory`: its name, its real path, and a hash of weights, config and tokenizer.

    Raises:
        DataError: it has no safetensors.
    """
    home = directory.resolve()
    if not any(home.glob(WEIGHTS)):
        raise DataError(f"model {name}: {home} has no {WEIGHTS}")
    return {"name": name, "path": str(home), "sha256": model_sha256(home)}


def model_sha256(directory: Path) -> str:
    """Hash the config and tokenizer in `directory`, and blocks of its weights, in seconds at most.

    Of each file of weights the hash takes the size and `BLOCKS` blocks spread evenly: training changes nearly every
    weight, so two checkpoints of one run differ in them.
    """
    home = directory.resolve()
    digest = hashlib.sha256()
    for file in sorted({file for pattern in DESCRIPTIONS for file in home.glob(pattern)}):
        digest.update(f"{file.name} ".encode() + file.read_bytes())
    for file in sorted(home.glob(WEIGHTS)):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as content:
            for i in range(BLOCKS):
                content.seek(i * max(size - BLOCK, 0) // (BLOCKS - 1))
                digest.update(content.read(BLOCK))
    return digest.hexdigest()


def short_name(model: str) -> str:
    """Return a name for directories and tables: of a checkpoint with its run, of a Hugging Face name with its owner.

    >>> short_name("runs/mine/checkpoints/step_20")
    'mine-step_20'
    >>> short_name("Qwen/Qwen2.5-0.5B")
    'Qwen--Qwen2.5-0.5B'
    """
    path = Path(model)
    if path.parent.name == "checkpoints":
        return f"{path.absolute().parent.parent.name}-{path.name}"
    if os.path.isdir(path) or path.is_absolute():
        return path.absolute().name
    return model.replace("/", "--")


def protocol_of(suite: Suite, installed: Installation, codec: HuggingFaceCodec) -> Fields:
    """Record everything that must be equal before two scores may be compared.

    Args:
        installed: the engine that generates.
        codec: makes the suite's prompts.
    """
    recipe = suite.recipe
    template = codec.chat_template if codec.prompts.uses_template else None
    return {
        "suite": suite.name,
        "split": "evaluation",
        "problems": len(suite.problems),
        "problems_sha256": _sha256(msgspec.msgpack.encode(suite.problems)),
        **suite.sampling.model_dump(mode="json", include={"samples", "temperature", "top_p", "top_k"}),
        "max_new_tokens": suite.max_new_tokens,
        "system": recipe.data.system,
        "suffix": recipe.data.suffix,
        "chat_template_sha256": None if template is None else _sha256(template.encode()),
        "stop": recipe.rollout.model_dump(mode="json", include={"stop", "stop_token_ids"}),
        "env": suite.env,
        "grader": suite.reward,
        "grader_version": _version_of(suite.reward),
        "engine": recipe.engine.kind,
        "engine_version": installed.version,
        "dtype": recipe.engine.dtype,
        "arl": arl.__version__,
        "seed": recipe.seed,
    }


def fingerprint(protocol: Fields) -> str:
    """Return a short hash, which is equal for equal protocols alone."""
    return _sha256(msgspec.json.encode(protocol, order="sorted"))[:12]


def differing_fields(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield (field, its value in one, in the other) for every field in which two records differ."""
    for field in sorted(one.keys() | other.keys()):
        if one.get(field) != other.get(field):
            yield field, one.get(field), other.get(field)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _version_of(grader: str) -> str:
    """Return the version of arl for its own graders, and a hash of the source of a user's module."""
    module = inspect.getmodule(import_function(grader, "reward.function"))
    name = grader.partition(":")[0] if module is None else module.__name__
    if name.partition(".")[0] == "arl":
        return f"arl {arl.__version__}"
    return f"sha256 {_sha256(inspect.getsource(sys.modules[name]).encode())[:12]}"


@dataclass(frozen=True)
class SuiteOutput:
    """Hold the files of one suite in one directory."""

    directory: Path
    protocol: Fields
    model: Fields

    @property
    def samples_file(self) -> Path:
        """Return the file of the samples."""
        return self.directory / f"{file_name(self.protocol['suite'])}.jsonl"

    @property
    def _record(self) -> Path:
        return self.samples_file.with_suffix(".json")

    def check(self) -> None:
        """Compare what the directory has of this suite with what is wanted, before anything is written.

        Raises:
            InputError: it has another protocol or model; names every field that differs.
        """
        if not self._record.exists():
            return
        there = _decode(self._record, dict[str, Fields])
        differing = [
            f"  {'model ' if kind == 'model' else ''}{field}: {found!r} there, {wanted!r} now"
            for kind, ours in (("protocol", self.protocol), ("model", self.model))
            for field, wanted, found in differing_fields(ours, there.get(kind, {}))
            if (kind, field) != ("model", "name")  # the same directory may be named in several ways
        ]
        if differing:
            raise InputError(
                f"--output {self.directory}: holds another evaluation of {self.protocol['suite']}, and its samples "
                "cannot be mixed with these:\n" + "\n".join(differing) + "\nGive another --output, or remove it"
            )

    def begin(self) -> list[Sample]:
        """Write the record; return the samples that an interrupted evaluation has kept, without their texts.

        Raises:
            DataError: a line is not a sample.
        """
        _replace(self._record, {"protocol": self.protocol, "model": self.model})
        samples: list[Sample] = []
        with self.samples_file.open("a+b") as file:
            file.seek(0)
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):  # the last one, at which it was killed
                    file.truncate(file.tell() - len(line))
                    break
                try:
                    sample = msgspec.json.decode(line, type=Sample)
                except msgspec.MsgspecError as error:
                    raise DataError(
                        f"{self.samples_file}:{number}: is not a sample ({error}); remove the file"
                    ) from error
                samples.append(msgspec.structs.replace(sample, prompt="", response=""))  # texts may be gigabytes
        return samples

    def finish(self, score: SuiteScore) -> Scored:
        """Enter the score into scores.json."""
        scored = Scored(
            model=self.model,
            fingerprint=fingerprint(self.protocol),
            protocol=self.protocol,
            score=score,
        )
        file = self.directory / SCORES
        before = read_scores(file) if file.exists() else []
        _replace(file, [*(entry for entry in before if entry.score.suite != score.suite), scored])
        return scored


def append_sample(file: BinaryIO, sample: Sample) -> None:
    """Write a sample, so that a killed evaluation goes on behind it."""
    file.write(msgspec.json.encode(sample) + b"\n")
    file.flush()


def file_name(suite: str) -> str:
    """Return the name of a suite as a file name.

    >>> file_name("mine:Digits")
    'mine.Digits'
    """
    return re.sub(r"[^A-Za-z0-9_-]", ".", suite)


def read_scores(file: Path) -> list[Scored]:
    """Read a scores.json.

    Raises:
        DataError: it is none.
    """
    scored: list[Scored] = _decode(file, list[Scored])
    return scored


def default_directory(model: Fields, protocol: Fields) -> Path:
    """Return evals/<model>/<suite>-<fingerprint>."""
    return Path("evals") / short_name(model["name"]) / f"{file_name(protocol['suite'])}-{fingerprint(protocol)}"


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Make the directory, and hold its lock.

    Raises:
        InputError: another process evaluates into it, or it cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--output {directory}: cannot be written ({error.strerror})") from error
    with require_lock(directory / LOCK) as file:
        if not try_lock(file):
            raise InputError(f"--output {directory}: another evaluation writes there; wait for it, or end it")
        yield


def _decode(file: Path, kind: Any) -> Any:
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError) as error:
        raise DataError(
            f"{file}: is not what `arl eval` writes ({error}); remove it, or name another directory"
        ) from error


def _replace(file: Path, content: object) -> None:
    replace_file(file, msgspec.json.format(msgspec.json.encode(content)))


def find_scores(directories: Iterable[Path]) -> list[Scored]:
    """Read every scores.json in the directories and below them.

    Raises:
        InputError: one of them has none, or is not a directory.
    """
    found: list[Scored] = []
    for directory in directories:
        if not directory.is_dir():
            raise InputError(f"{directory}: is not a directory; give one that `arl eval` has written, or one above")
        files = sorted(directory.rglob(SCORES))
        if not files:
            raise InputError(f"{directory}: no {SCORES} in it or below; `arl eval` writes one when a suite is finished")
        for file in files:
            found += read_scores(file)
    return found


def print_scores(scores: Sequence[Scored], console: Console) -> None:
    """Print a table for each protocol, and then what differs between protocols of one suite."""
    if not console.is_terminal:
        console.width = max(console.width, FILE_WIDTH)
    groups: dict[str, list[Scored]] = {}
    for scored in scores:
        groups.setdefault(scored.fingerprint, []).append(scored)
    for name, group in groups.items():
        protocol = group[0].protocol
        title = f"{protocol['suite']}: {_sampling(protocol)}; {protocol['grader']}; protocol {name}"
        console.print(title, markup=False, soft_wrap=True)
        console.print(_table(group))
    for line in _differences([group[0] for group in groups.values()]):
        console.print(line, markup=False, soft_wrap=True)


def _sampling(protocol: Fields) -> str:
    parts = [f"at most {protocol['max_new_tokens']} tokens"]
    if protocol["temperature"] == 0:
        return f"greedy, {parts[0]}"
    if protocol["top_k"] is not None:
        parts.insert(0, f"top-k {protocol['top_k']}")
    if protocol["top_p"] < 1:
        parts.insert(0, f"top-p {protocol['top_p']:g}")
    samples = f"{protocol['samples']} x {protocol['problems']} problems"
    return ", ".join([samples, f"temperature {protocol['temperature']:g}", *parts])


def _table(group: Sequence[Scored]) -> Table:
    """Lay out the scores of one protocol, in percent, each above its 95 % interval."""
    n = group[0].score.samples
    ks = sorted({k for scored in group for k in scored.score.pass_at if k > 1})
    columns = [f"avg@{n}", *(f"pass@{k}" for k in ks), *([f"maj@{n}"] if n > 1 else []), "tokens", "cut off", "errors"]
    table = Table("model", box=SIMPLE)
    table.columns[0].overflow = "fold"
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for scored in group:
        score = scored.score
        passes = [_percent(score.pass_at[k]) if k in score.pass_at else "" for k in ks]
        majority = [_percent(score.majority)] if n > 1 else []
        length = f"{score.lengths.mean:,.1f}\np50 {score.lengths.p50:,.0f}, p95 {score.lengths.p95:,.0f}"
        ends = [length, f"{score.truncated:.1%}", str(score.errors)]
        table.add_row(escape(short_name(scored.model["name"])), _percent(score.average), *passes, *majority, *ends)
    return table


def _percent(score: Estimate) -> str:
    return f"{100 * score.value:.1f}\n{100 * score.low:.1f}–{100 * score.high:.1f}"


def _differences(scores: Sequence[Scored]) -> Iterator[str]:
    """Say in what each further protocol of a suite differs from the suite's first one."""
    first: dict[str, Scored] = {}
    for scored in scores:
        suite = scored.score.suite
        reference = first.setdefault(suite, scored)
        if reference is scored:
            continue
        yield f"{suite}: [{scored.fingerprint}] is not comparable with [{reference.fingerprint}]:"
        for field, *values in differing_fields(reference.protocol, scored.protocol):
            before, now = [text if len(text) <= MAX_VALUE_WIDTH else f"{text[:59]}…" for text in map(str, values)]
            yield f"  {field}: {before} → {now}"
