"""Write, read and show what an evaluation leaves: the protocol by which scores may be compared, samples and scores.

    Suite, engine, tokenizer ─► protocol ─► fingerprint     scores of one protocol share a table; others never do

<suite>.json       protocol and model: written first, compared when it is continued
<suite>.jsonl      a line for each sample, appended as soon as it is scored
scores.json        the scores of every finished suite, for machines
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

import arl
from arl.data.hub import DESCRIPTION
from arl.data.prompt_format import CLOCK
from arl.data.tokenizer import HuggingFaceCodec
from arl.engine.backend import Installation
from arl.errors import DataError, InputError
from arl.files import held_lock, replace_file, writing
from arl.run.evaluation.scores import Estimate, Sample, SuiteScore
from arl.run.evaluation.suite import Suite
from arl.run.rewards import reward_name, reward_sha256
from arl.tasks.registry import env_name

Fields = dict[str, Any]
SCORES = "scores.json"
LOCK = ".lock"
WEIGHTS = "model*.safetensors"
BLOCKS = 256  # of each file of weights
BLOCK = 64 * 1024  # bytes
FILE_WIDTH = 120  # columns of tables, where the output is not a terminal


class Scored(Struct, frozen=True, kw_only=True):
    """Hold one entry of scores.json."""

    model: Fields
    fingerprint: str  # of the protocol
    protocol: Fields
    score: SuiteScore


# ---- what must be equal


def model_sha256(directory: Path) -> str:
    """Hash the config and tokenizer in `directory`, and blocks of its weights, in seconds at most.

    Of each file of weights the hash takes the size and `BLOCKS` blocks spread evenly: training changes nearly every
    weight, so two checkpoints of one run differ in them.

    Raises:
        DataError: it has no safetensors.
    """
    weights = sorted(directory.glob(WEIGHTS))
    if not weights:
        raise DataError(f"model {directory}: has no {WEIGHTS}")
    digest = hashlib.sha256()
    for file in sorted({file for pattern in DESCRIPTION for file in directory.glob(pattern)}):
        digest.update(f"{file.name} ".encode() + file.read_bytes())
    for file in weights:
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as content:
            for i in range(BLOCKS):
                content.seek(i * max(size - BLOCK, 0) // (BLOCKS - 1))
                digest.update(content.read(BLOCK))
    return digest.hexdigest()


def protocol_of(suite: Suite, installed: Installation, codec: HuggingFaceCodec) -> Fields:
    """Record everything that must be equal before two scores may be compared.

    Args:
        installed: the engine that generates.
        codec: makes the suite's prompts.
    """
    recipe = suite.recipe
    template = codec.prompts.template
    return {
        "suite": suite.name,
        "problems": len(suite.problems),
        "problems_sha256": _sha256(msgspec.msgpack.encode(suite.problems)),
        **recipe.eval.model_dump(mode="json", include={"samples", "temperature", "top_p", "top_k"}),
        "max_new_tokens": suite.max_new_tokens,
        "system": recipe.data.system,
        "suffix": recipe.data.suffix,
        "chat_template_sha256": template and _sha256(template.encode()),
        "template_arguments": recipe.data.template_arguments,
        "template_time": str(recipe.data.template_time) if template and CLOCK in template else None,
        **recipe.rollout.model_dump(mode="json", include={"stop", "stop_token_ids"}),
        "env": recipe.rollout.agent or env_name(recipe),
        "grader": reward_name(recipe),
        "grader_sha256": reward_sha256(recipe),
        "engine": recipe.engine.kind,
        "engine_version": installed.version,
        "dtype": recipe.engine.dtype,
        "arl": arl.__version__,
        "seed": recipe.seed,
    }


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _differences(one: Fields, other: Fields) -> list[str]:
    """Write a line for every field in which two protocols differ."""
    fields = [field for field in sorted(one | other) if one.get(field) != other.get(field)]
    return [f"  {field}: {one.get(field)!r} → {other.get(field)!r}" for field in fields]


# ---- files


class SuiteOutput:
    """Hold the files of one suite in one directory.

    Args:
        given: the directory; None: evals/<model>/<suite>-<fingerprint>.
        model: name and sha256.
    """

    def __init__(self, given: Path | None, protocol: Fields, model: Fields) -> None:
        self._protocol = protocol
        self.model = model
        # A short hash, which is equal for equal protocols alone.
        self.fingerprint = _sha256(msgspec.json.encode(protocol, order="sorted"))[:12]
        name = re.sub(r"[^A-Za-z0-9_-]", ".", protocol["suite"])
        self.directory = given or Path("evals") / short_name(model["name"]) / f"{name}-{self.fingerprint}"
        self.samples_file = self.directory / f"{name}.jsonl"
        self.kept: list[Sample] = []  # by an interrupted evaluation, without their texts
        self._record = self.directory / f"{name}.json"

    def check(self) -> None:
        """Compare what the directory has of this suite with what is wanted, before anything is written.

        Raises:
            InputError: it has another protocol or model; names every field that differs.
        """
        if not self._record.exists():
            return
        there = msgspec.json.decode(self._record.read_bytes())
        theirs = there["protocol"] | {"model_sha256": there["model"]["sha256"]}  # one may have several names
        differing = _differences(theirs, self._protocol | {"model_sha256": self.model["sha256"]})
        if differing:
            raise InputError(
                f"--output {self.directory}: holds another evaluation of {self._protocol['suite']}, and its samples "
                "cannot be mixed with these:\n" + "\n".join(differing) + "\nGive another --output, or remove it"
            )

    def begin(self) -> None:
        """Write the record, and read the samples that are there."""
        _replace(self._record, {"protocol": self._protocol, "model": self.model})
        with self.samples_file.open("a+b") as file:
            file.seek(0)
            for line in file:
                if not line.endswith(b"\n"):  # the last one, at which it was killed
                    file.truncate(file.tell() - len(line))
                    break
                self.kept.append(msgspec.json.decode(line, type=Sample).without_texts)

    def finish(self, score: SuiteScore) -> Scored:
        """Enter the score into scores.json."""
        scored = Scored(model=self.model, fingerprint=self.fingerprint, protocol=self._protocol, score=score)
        file = self.directory / SCORES
        before = read_scores(file) if file.exists() else []
        _replace(file, [*(entry for entry in before if entry.score.suite != score.suite), scored])
        return scored


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


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Make the directory, and hold its lock.

    Raises:
        DiskError: it cannot be written.
        InputError: another process evaluates into it.
    """
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
    with held_lock(directory / LOCK, f"--output {directory}: another evaluation writes there; wait for it, or end it"):
        yield


def read_scores(file: Path) -> list[Scored]:
    """Read a scores.json.

    Raises:
        DataError: it is none.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[Scored])
    except msgspec.MsgspecError as error:
        raise DataError(f"{file}: is not what `arl eval` writes ({error}); remove it") from error


def find_scores(directories: Iterable[Path]) -> list[Scored]:
    """Read every scores.json in the directories and below them.

    Raises:
        InputError: there is none in one of them.
    """
    found: list[Scored] = []
    for directory in directories:
        files = sorted(directory.rglob(SCORES))
        if not files:
            raise InputError(f"{directory}: no {SCORES} in it or below; `arl eval` writes one when a suite is finished")
        for file in files:
            found += read_scores(file)
    return found


def _replace(file: Path, content: object) -> None:
    replace_file(file, msgspec.json.format(msgspec.json.encode(content)))


# ---- tables


def print_scores(scores: Sequence[Scored], console: Console) -> None:
    """Print a table for each protocol, and what differs from the first protocol of the same suite."""
    if not console.is_terminal:
        console.width = max(console.width, FILE_WIDTH)
    groups: dict[str, list[Scored]] = {}
    for scored in scores:
        groups.setdefault(scored.fingerprint, []).append(scored)
    first: dict[str, Scored] = {}
    for name, group in groups.items():
        protocol = group[0].protocol
        suite = protocol["suite"]
        title = (
            f"{suite}: {protocol['samples']} x {protocol['problems']} problems, temperature "
            f"{protocol['temperature']:g}, at most {protocol['max_new_tokens']} tokens; {protocol['grader']}; "
            f"protocol {name}"
        )
        console.print(title, markup=False, soft_wrap=True)
        console.print(_table(group))
        reference = first.setdefault(suite, group[0])
        if reference is not group[0]:
            heading = f"{suite}: [{name}] is not comparable with [{reference.fingerprint}]:"
            lines = [heading, *_differences(reference.protocol, protocol)]
            console.print("\n".join(lines), markup=False, soft_wrap=True)


def _table(group: Sequence[Scored]) -> Table:
    """Lay out the scores of one protocol, in percent, each above its 95 % interval."""
    n = group[0].score.samples
    ks = [k for k in group[0].score.pass_at if k > 1]
    names = [f"avg@{n}", *(f"pass@{k}" for k in ks), f"maj@{n}", "tokens", "cut off", "errors"]
    numbers = [Column(name, justify="right", no_wrap=True) for name in names]
    table = Table(Column("model", overflow="fold"), *numbers, box=SIMPLE)
    for scored in group:
        score = scored.score
        table.add_row(
            escape(short_name(scored.model["name"])),
            _percent(score.average),
            *(_percent(score.pass_at[k]) for k in ks),
            _percent(score.majority),
            f"{score.mean_tokens:,.1f}",
            f"{score.truncated:.1%}",
            str(score.errors),
        )
    return table


def _percent(score: Estimate) -> str:
    return f"{100 * score.value:.1f}\n{100 * score.low:.1f}–{100 * score.high:.1f}"
