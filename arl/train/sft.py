"""Fine-tune a model on pairs of prompt and response; the warm-up (arl.train.warmup) tunes a tiny one in the same way.

    rows ─► pairs ─► LossSequence (response-only) ─► pack_groups ─► −logprob ─► AdamW ─► a Hugging Face model directory

A row is a prompt and its response, or the messages of a conversation, of which each answer is a pair with all that came
before. A response ends with the token that ends a turn, as the policy must sample it. Every rank of a torchrun world
packs the same pairs and computes its own share. Standard output is one JSON object a line; the last names the result.
"""

import json
import os
import random
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from msgspec import Struct
from pydantic import ValidationError

from arl.config.recipe import TinyModel, Train
from arl.config.section import NonNegative, Positive, PositiveFloat, Section
from arl.data.hub import check_model_source
from arl.data.model_limits import model_flops, model_limits
from arl.data.row_problems import MalformedRow, prompt_of
from arl.data.table_rows import read_rows
from arl.data.tokenizer import HuggingFaceCodec, load_codec
from arl.errors import DataError, InputError, RunStopped, TrainerError
from arl.files import refuse_unwritable, remove_any, writing
from arl.launch.devices import visible_cores
from arl.models.tiny import make_tiny_model
from arl.train.micro_batch import pack_groups
from arl.train.optimizer import Schedule
from arl.train.packing import COLUMNS, LossSequence
from arl.train.placed_batch import place_batch
from arl.train.sharded_model import ShardedModel
from arl.train.sharding import init_ranks
from arl.types import Problem

COLLECTIVE_SECONDS = 600.0
CAPACITY = 16_384  # packed tokens of a micro-batch, or the longest pair
RAMP = 50  # optimizer steps
FLOOR = 0.1  # the learning rate at the end of the schedule, as a share of the peak
FIRST_SAID = 3  # step of the first progress line: the time of the first step is not that of the others
SAY_EVERY = 10  # steps between progress lines
# Operations a token, of 5M parameters. With 0.4M a second thread makes a step a fifth shorter on free cores, and 14
# times as long beside other work; with 3.4M it makes it twice as long.
SMALL = 1e7
TINY = "tiny"  # in the place of a model

Pair = tuple[list[int], list[int]]  # prompt tokens, response tokens
Prompt = str | list[dict[str, str]]
Example = tuple[str, Prompt, str]  # the place of its row, for messages; what is asked; the response to learn


class PairsJob(Section):
    """Fine-tune a causal model on pairs of prompt and response."""

    model: str
    """Directory or Hugging Face name; tiny: a new model of 0.4M parameters, whose tokens are the data's characters."""
    data: str
    """jsonl or parquet file."""
    steps: Positive
    """Optimizer steps; the file is shuffled anew at every epoch."""
    batch_size: Positive = 64
    """Pairs per optimizer step."""
    learning_rate: PositiveFloat = 1e-5
    """Peak; 50 steps of ramp, then linear to 10 % at the last step."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Compute type; auto: bfloat16 on a GPU, float32 on the CPU."""
    seed: NonNegative = 0
    """Of the order of the pairs, and of a new model's weights."""
    threads: Positive | None = None
    """CPU threads of each rank. null: one for a model of less than about 5M parameters, else all cores."""
    save_every: Positive = 500
    """Steps between saves; each takes the place of the one before."""
    output: str
    """Model directory to write; must not exist."""


class Tuner:
    """Train a model on pairs: one update a step, on all ranks.

    Args:
        path: model directory.
        train: how to compute; the learning rate is given at each step.
    """

    def __init__(self, path: str | Path, **train: Any) -> None:
        section = Train(betas=(0.9, 0.98), weight_decay=0.01, ranks=int(os.environ.get("WORLD_SIZE", "1")), **train)
        torch.set_num_threads(train["threads"])
        self.policy = ShardedModel(path, section, 1.0, init_ranks(COLLECTIVE_SECONDS))
        self._flops = model_flops(str(path))

    def step(self, pairs: Sequence[Pair], learning_rate: float) -> float:
        """Make one update, on the same pairs on every rank; return −logprob, the mean over their response tokens.

        Raises:
            TrainerError: a loss or gradient that is not finite; the weights are as before.
        """
        groups = [[_loss_sequence(prompt, response)] for prompt, response in pairs]
        longest = max(len(prompt) + len(response) for prompt, response in pairs)
        own = pack_groups(groups, max(CAPACITY, longest), dist.get_world_size(), self._flops)[dist.get_rank()]
        num_tokens = sum(len(response) for _, response in pairs)
        total = torch.zeros((), device=self.policy.device)
        for i, batch in enumerate(own):
            placed = place_batch(batch, self.policy.device)
            logprob, _ = self.policy.score(placed)
            loss = -logprob.index_select(0, placed.arrays["loss_scores"]).sum() / num_tokens
            self.policy.backward(loss, last=i + 1 == len(own))
            total += loss.detach()
        update = self.policy.update(learning_rate, total)
        if not update.is_finite:
            raise TrainerError(f"{update}: lower the learning rate, or look at the pairs")
        return update.loss

    def any_rank(self, flag: bool) -> bool:
        """Return whether the flag of any rank is set. Collective."""
        flags = torch.tensor(flag, dtype=torch.int32, device=self.policy.device)
        dist.all_reduce(flags, dist.ReduceOp.MAX)
        return bool(flags)

    def save(self, output: Path) -> None:
        """Write the model in the place of the last save, so that one of the two is always whole. Collective."""
        fresh = output.with_name(f".{output.name}.fresh")
        if dist.get_rank() == 0:
            remove_any(fresh)  # of a save that was killed
        self.policy.save(fresh)
        if dist.get_rank() != 0:
            return
        old = output.with_name(f".{output.name}.old")
        with writing(output):
            if output.exists():
                output.rename(old)
            fresh.rename(output)
            remove_any(old)


def _loss_sequence(prompt: list[int], response: list[int]) -> LossSequence:
    tokens = np.array(prompt + response, np.int32)
    columns = {name: np.zeros(len(response), dtype) for name, dtype in COLUMNS.items()}
    return LossSequence(tokens, np.arange(len(prompt), len(tokens)), columns)


def encode(codec: HuggingFaceCodec, prompt: Prompt, response: str) -> Pair:
    """Encode a prompt, and its response with the token that ends it, once."""
    said = list(codec.encode(response))
    if not said or said[-1] not in codec.stop_token_ids:
        said.append(codec.stop_token_ids[0])
    return list(codec.encode_problem(Problem(prompt))), said


def say(**progress: Any) -> None:
    """Print one line of progress, on rank 0 alone."""
    if dist.get_rank() == 0:
        print(json.dumps(progress), flush=True)


def tune(fields: dict[str, Any]) -> None:
    """Train on the pairs of a file, and write the model. Args: the fields of a PairsJob.

    Raises:
        InputError: a field is missing, unknown or out of range, or the output exists or cannot be written.
        DataError: a row of the file is no example or too long, there is none, or the model is not supported.
        RunStopped: interrupted; the output holds what had been learned.
    """
    try:
        job = PairsJob.model_validate(fields)
    except ValidationError as error:
        raise InputError(str(error)) from error
    output = Path(job.output)
    if os.path.exists(output):
        raise InputError(f"output {output} exists already: remove it or choose another")
    refuse_unwritable(output.parent, "output")
    examples = list(read_examples(Path(job.data)))
    if not examples:
        raise DataError(f"data {job.data}: there is no pair in it; give one JSON object a line")
    with tempfile.TemporaryDirectory(prefix="arl-sft-") as scratch:
        model = _make_tiny(job, examples, Path(scratch)) if job.model == TINY else job.model
        note = check_model_source(model)
        if note is not None:
            print(note, file=sys.stderr)
        step = _train(job, model, _encode_all(load_codec(model), examples, model_limits(model).context))
    say(output=job.output)
    dist.destroy_process_group()  # left to the interpreter's end, gloo's threads sometimes abort
    if step < job.steps:
        rest = shlex.join(["arl", "sft", job.output, job.data, "OUTPUT", "--steps", str(job.steps - step)])
        raise RunStopped(f"stopped after step {step} of {job.steps}; {output} holds the model\ngo on with: {rest}")


def _make_tiny(job: PairsJob, examples: Sequence[Example], directory: Path) -> str:
    """Make a new model whose tokens are the characters of the examples, and return its directory."""
    characters = set()
    for place, prompt, response in examples:
        if not isinstance(prompt, str):
            raise DataError(f"{place}: a new tiny model has no chat template; give a prompt that is text")
        characters |= {*prompt, *response}
    make_tiny_model(TinyModel(), "".join(sorted(characters)), job.seed, directory)
    return str(directory)


def _encode_all(codec: HuggingFaceCodec, examples: Sequence[Example], context: int) -> list[Pair]:
    pairs = []
    for place, prompt, response in examples:
        try:
            pairs.append(encode(codec, prompt, response))
        except DataError as error:
            raise DataError(f"{place}: {error}") from error
        num_tokens = len(pairs[-1][0]) + len(pairs[-1][1])
        if num_tokens > context:
            raise DataError(f"{place}: {num_tokens} tokens; the context of the model is {context}: shorten the row")
    return pairs


def _train(job: PairsJob, model: str, pairs: list[Pair]) -> int:
    """Train, write the output, and return the last step that was made, which an interrupt may bring forward."""
    dtype = job.dtype
    if dtype == "auto":
        dtype = "bfloat16" if torch.cuda.is_available() else "float32"
    threads = job.threads or (1 if model_flops(model).token < SMALL else visible_cores())
    schedule = Schedule(peak=job.learning_rate, ramp=RAMP, decay_from=RAMP - 1, last=job.steps - 1, decay_to=FLOOR)
    tuner = Tuner(model, dtype=dtype, threads=threads)
    say(pairs=len(pairs), steps=job.steps, dtype=dtype, threads=threads)
    batches = _batches(pairs, job)
    interrupts: list[int] = []

    def stop_soon(number: int, _: object) -> None:
        interrupts.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("stopping after this step; a second Ctrl-C ends at once and saves nothing", file=sys.stderr, flush=True)

    start = time.perf_counter()
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:  # as in a script's background, whose Ctrl-C is not for it
        signal.signal(signal.SIGINT, stop_soon)
    for step in range(1, job.steps + 1):
        loss = tuner.step(next(batches), schedule.rate(step - 1))
        is_last = step == job.steps or tuner.any_rank(bool(interrupts))
        if step == FIRST_SAID or step % SAY_EVERY == 0 or is_last:
            seconds = time.perf_counter() - start
            left = round(seconds / step * (job.steps - step))
            say(step=step, loss=round(loss, 4), seconds=round(seconds, 2), seconds_left=left)
        if is_last or step % job.save_every == 0:
            tuner.save(Path(job.output))
        if is_last:
            break
    signal.signal(signal.SIGINT, before)
    return step


def _batches(pairs: list[Pair], job: PairsJob) -> Iterator[list[Pair]]:
    """Yield whole batches without end. Every pair comes once an epoch; a batch may span two epochs."""
    rng = random.Random(job.seed)
    waiting: list[Pair] = []
    while True:
        while len(waiting) < job.batch_size:
            waiting += rng.sample(pairs, len(pairs))
        yield waiting[: job.batch_size]
        del waiting[: job.batch_size]


class _Line(Struct):
    prompt: Any  # text, or messages
    response: str


def read_examples(path: Path) -> Iterator[Example]:
    """Yield what the rows of a file show: one response each, or every answer of a conversation.

    Raises:
        DataError: the file cannot be read, or a row shows nothing.
    """
    for row in read_rows(path, field="data"):
        try:
            if row.malformed:
                raise MalformedRow(row.malformed)
            shown = _answers(row.values)
        except (MalformedRow, msgspec.ValidationError) as error:
            raise DataError(
                f"{row.place}: {error}; a line is {{'prompt': …, 'response': …}} or {{'messages': […]}}"
            ) from error
        for prompt, response in shown:
            yield row.place, prompt, response


def _answers(values: dict[str, Any]) -> list[tuple[Prompt, str]]:
    """Return the response of a row, or each answer of its conversation, behind what comes before it."""
    if "messages" not in values:
        line = msgspec.convert(values, _Line)
        return [(prompt_of(line.prompt, "prompt"), line.response)]
    messages: Any = prompt_of(values["messages"], "messages")
    answers = [i for i in range(1, len(messages)) if isinstance(messages, list) and messages[i]["role"] == "assistant"]
    if not answers:
        raise MalformedRow("no message of the column messages is an assistant's answer")
    return [(messages[:i], messages[i]["content"]) for i in answers]
