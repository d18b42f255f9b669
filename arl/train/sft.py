"""Fine-tune a model on pairs of prompt and response; the warm-up (arl.train.warmup) tunes a tiny one in the same way.

    pairs ─► LossSequence (response-only) ─► pack_groups ─► −logprob ─► AdamW ─► a Hugging Face model directory

Every rank of a torchrun world packs the same pairs and computes its own share. Standard output is one JSON object a
line; the last names the result.
"""

import json
import os
import random
import sys
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

from arl.config.recipe import Train
from arl.config.section import NonNegative, Positive, PositiveFloat, Section
from arl.data.hub import check_model_source
from arl.data.model_limits import model_flops
from arl.data.row_problems import MalformedRow, prompt_of
from arl.data.table_rows import read_rows
from arl.data.tokenizer import HuggingFaceCodec, load_codec
from arl.errors import DataError, InputError, TrainerError
from arl.train.micro_batch import pack_groups
from arl.train.optimizer import Schedule
from arl.train.packing import COLUMNS, LossSequence
from arl.train.sharded_model import ShardedModel
from arl.train.sharding import init_ranks
from arl.types import Problem

COLLECTIVE_SECONDS = 600.0
CAPACITY = 16_384  # packed tokens of a micro-batch, or the longest pair
RAMP = 50  # optimizer steps
FLOOR = 0.1  # the learning rate at the end of the schedule, as a share of the peak
SAY_EVERY = 10  # steps between progress lines

Pair = tuple[list[int], list[int]]  # prompt tokens, response tokens
Prompt = str | list[dict[str, str]]


class PairsJob(Section):
    """Fine-tune a causal model on pairs of prompt and response."""

    model: str
    """Directory or Hugging Face name."""
    data: str
    """jsonl file."""
    steps: Positive
    """Optimizer steps; the file is shuffled anew at every epoch."""
    batch_size: Positive = 64
    """Pairs per optimizer step."""
    learning_rate: PositiveFloat = 1e-5
    """Peak; 50 steps of ramp, then linear to 10 % at the last step."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Compute type; auto: bfloat16 on a GPU, float32 on the CPU."""
    seed: NonNegative = 0
    """Of the order of the pairs."""
    threads: Positive = 1
    """CPU threads of each rank."""
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
            logprob, _ = self.policy.score(batch)
            score_of = self.policy.tensor(batch.loss_scores)
            loss = -logprob.index_select(0, score_of).sum() / num_tokens
            self.policy.backward(loss, last=i + 1 == len(own))
            total += loss.detach()
        update = self.policy.update(learning_rate, total)
        if not update.is_finite:
            raise TrainerError(f"{update}: lower the learning rate, or look at the pairs")
        return update.loss


def _loss_sequence(prompt: list[int], response: list[int]) -> LossSequence:
    tokens = np.array(prompt + response, np.int32)
    columns = {name: np.zeros(len(response), dtype) for name, dtype in COLUMNS.items()}
    return LossSequence(tokens, np.arange(len(prompt), len(tokens)), columns)


def encode(codec: HuggingFaceCodec, prompt: Prompt, response: str) -> Pair:
    """Encode a prompt, and its response with the token that ends it."""
    response_tokens = [*codec.encode(response), codec.stop_token_ids[0]]
    return list(codec.encode_problem(Problem(prompt))), response_tokens


def say(**progress: Any) -> None:
    """Print one line of progress, on rank 0 alone."""
    if dist.get_rank() == 0:
        print(json.dumps(progress), flush=True)


def tune(fields: dict[str, Any]) -> None:
    """Train on the pairs of a file, and write the model. Args: the fields of a PairsJob.

    Raises:
        InputError: a field is missing, unknown or out of range, or the output exists.
        DataError: a line of the file is not a pair, there is none, or the model is not supported.
    """
    try:
        job = PairsJob.model_validate(fields)
    except ValidationError as error:
        raise InputError(str(error)) from error
    if os.path.exists(job.output):
        raise InputError(f"output {job.output} exists already: remove it or choose another")
    note = check_model_source(job.model)
    if note is not None:
        print(note, file=sys.stderr)
    codec = load_codec(job.model)
    pairs = [encode(codec, prompt, response) for prompt, response in read_pairs(Path(job.data))]
    if not pairs:
        raise DataError(f"data {job.data}: there is no pair in it; give one JSON object a line")
    dtype = job.dtype
    if dtype == "auto":
        dtype = "bfloat16" if torch.cuda.is_available() else "float32"
    schedule = Schedule(peak=job.learning_rate, ramp=RAMP, decay_from=RAMP - 1, last=job.steps - 1, decay_to=FLOOR)
    tuner = Tuner(job.model, dtype=dtype, threads=job.threads)
    batches = _batches(pairs, job)
    start = time.perf_counter()
    for step in range(1, job.steps + 1):
        loss = tuner.step(next(batches), schedule.rate(step - 1))
        if step % SAY_EVERY == 0 or step == job.steps:
            say(step=step, loss=round(loss, 4), seconds=round(time.perf_counter() - start, 2))
    tuner.policy.save(Path(job.output))
    say(output=job.output)
    dist.destroy_process_group()  # left to the interpreter's end, gloo's threads sometimes abort


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


def read_pairs(path: Path) -> Iterator[tuple[Prompt, str]]:
    """Yield prompt and response of each line of a jsonl file.

    Raises:
        DataError: the file cannot be read, or a line is not a pair.
    """
    for row in read_rows(path, field="data"):
        try:
            if row.malformed:
                raise MalformedRow(row.malformed)
            line = msgspec.convert(row.values, _Line)
            prompt = prompt_of(line.prompt, "prompt")
        except (MalformedRow, msgspec.ValidationError) as error:
            raise DataError(f"{row.place}: {error}; a line is {{'prompt': …, 'response': …}}") from error
        yield prompt, line.response
