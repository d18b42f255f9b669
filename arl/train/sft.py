"""Supervised fine-tuning: `python -m arl.train.sft JOB.json`, or the job on standard input.

    demonstrations ─► LossSequence (response-only) ─► pack_groups ─► −logprob ─► AdamW ─► a Hugging Face model directory

A PairsJob tunes any causal model on a jsonl file of {"prompt": text or chat messages, "response": text}; a WarmupJob
(arl.train.warmup) makes a tiny model and teaches it its task, in one process. Every rank of a torchrun world packs
the same pairs and computes its own share. Standard output is one JSON object a line; the last names the result.
"""

import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from pydantic import Field, TypeAdapter, ValidationError

from arl.data.tokenizer import HuggingFaceCodec, load_codec
from arl.errors import ArlError, DataError, InputError
from arl.recipe import Fraction, NonNegative, Positive, PositiveFloat, Section, TinyModel, Train, Warmup
from arl.train.fsdp import ShardedModel, init_ranks
from arl.train.packer import LossSequence, pack_groups
from arl.types import Problem

COLLECTIVE_SECONDS = 600.0
RAMP, FLOOR = (
    50,
    0.1,
)  # optimizer steps of ramp; the learning rate at the end of the schedule, as a share of the peak
SAY_EVERY = 10  # steps between progress lines

Pair = tuple[list[int], list[int]]  # prompt tokens, response tokens


class WarmupJob(Section):
    kind: Literal["warmup"] = "warmup"
    model: TinyModel
    """Made on the spot."""
    task: str
    """Name of the task; its vocabulary is the model's."""
    warmup: Warmup = Warmup()
    seed: NonNegative = 0
    max_new_tokens: Positive = 48
    """Of an evaluation sample."""
    eval_fraction: Fraction = 0.1
    """Share of problems held out: never demonstrated."""
    threads: Positive = 1
    output: str
    """Model directory to write; must not exist."""


class PairsJob(Section):
    kind: Literal["pairs"] = "pairs"
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
    capacity: Positive = 16_384
    """Packed tokens per micro-batch."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Compute type."""
    seed: NonNegative = 0
    threads: Positive = 1
    output: str
    """Model directory to write; must not exist."""


Job = Annotated[WarmupJob | PairsJob, Field(discriminator="kind")]


class Tuner:
    """A model under supervised training.

    Args:
        path: model directory.
        train: hyper-parameters; the learning rate is given at each step.
    """

    def __init__(self, path: str | Path, train: Train) -> None:
        torch.set_num_threads(train.threads or torch.get_num_threads())
        self.sharded = ShardedModel(path, train, 1.0, init_ranks(COLLECTIVE_SECONDS))
        self._capacity = train.capacity

    def step(self, pairs: Sequence[Pair], learning_rate: float) -> float:
        """One update on the same pairs on every rank; returns −logprob, the mean over their response tokens.

        Raises:
            InputError: a pair longer than train.capacity.
            TrainerError: a gradient that is not finite.
        """
        groups = [[_loss_sequence(prompt, response)] for prompt, response in pairs]
        share = pack_groups(groups, self._capacity, dist.get_world_size())[dist.get_rank()]
        tokens = sum(len(response) for _, response in pairs)
        total = torch.zeros((), device=self.sharded.device)
        for i, batch in enumerate(share):
            logprob, _ = self.sharded.score(batch)
            loss = -logprob.index_select(0, self.sharded.tensor(batch.loss_scores)).sum() / tokens
            self.sharded.backward(loss, last=i + 1 == len(share))
            total += loss.detach()
        self.sharded.update(learning_rate)
        dist.all_reduce(total)
        return float(total)


def scheduled(step: int, peak: float, last: int) -> float:
    """Linear ramp over RAMP steps, then linear from the peak at step 0 to FLOOR · peak at step `last`."""
    return peak * min((step + 1) / RAMP, 1 - (1 - FLOOR) * min(1.0, step / last))


def encode(codec: HuggingFaceCodec, prompt: str | list[dict[str, str]], response: str) -> Pair:
    """Tokens of a prompt and of its response, with its end."""
    return list(codec.encode_problem(Problem(prompt))), [*codec.encode(response), codec.stop_token_ids[0]]


def say(**progress: Any) -> None:
    """One line of progress, from rank 0."""
    if dist.get_rank() == 0:
        print(json.dumps(progress), flush=True)


def tune_pairs(job: PairsJob) -> None:
    """See PairsJob.

    Raises:
        DataError: a line of the file is not a pair.
    """
    codec = load_codec(job.model)
    pairs = [encode(codec, prompt, response) for prompt, response in _read(Path(job.data))]
    train = Train(dtype=job.dtype, capacity=job.capacity, threads=job.threads, betas=(0.9, 0.98), weight_decay=0.01)
    tuner, batches, start = Tuner(job.model, train), _batches(pairs, job), time.perf_counter()
    for step in range(1, job.steps + 1):
        loss = tuner.step(next(batches), scheduled(step - 1, job.learning_rate, job.steps))
        if step % SAY_EVERY == 0 or step == job.steps:
            say(step=step, loss=round(loss, 4), seconds=round(time.perf_counter() - start, 2))
    tuner.sharded.save(Path(job.output), tokenizer_path=job.model)


def _batches(pairs: list[Pair], job: PairsJob) -> Iterator[list[Pair]]:
    """Whole batches, epoch after epoch; every pair comes once an epoch, a batch may span two."""
    rng, waiting = random.Random(job.seed), list[Pair]()
    while True:
        while len(waiting) < job.batch_size:
            waiting += rng.sample(pairs, len(pairs))
        yield waiting[: job.batch_size]
        del waiting[: job.batch_size]


def _read(path: Path) -> Iterator[tuple[Any, str]]:
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise DataError(f"data {path}: {error}") from error
    for number, line in enumerate(lines, 1):
        try:
            pair = json.loads(line)
            yield pair["prompt"], pair["response"]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise DataError(f"{path}:{number}: a line is {{'prompt': …, 'response': …}}; {error!r}") from error
    if not lines:
        raise DataError(f"data {path}: the file is empty")


def _loss_sequence(prompt: list[int], response: list[int]) -> LossSequence:
    nothing = np.zeros(len(response), np.float32)
    return LossSequence(
        token_ids=np.array(prompt + response, np.int32),
        loss_at=np.arange(len(prompt), len(prompt) + len(response)),
        behavior_logprobs=nothing,
        policy_versions=nothing.astype(np.int32),
        advantage=1.0,
    )


def run(job: WarmupJob | PairsJob) -> None:
    """Do the job.

    Raises:
        InputError: its output exists already.
    """
    from arl.train.warmup import warm_up

    if Path(job.output).exists():
        raise InputError(f"output {job.output} exists already: remove it or choose another")
    if isinstance(job, WarmupJob):
        warm_up(job)
    else:
        tune_pairs(job)
    say(output=job.output)


def run_job(kind: type[WarmupJob] | type[PairsJob], fields: dict[str, Any]) -> None:
    """Check the fields of a job and do it, in a process that does nothing else with torch.distributed.

    Raises:
        InputError: a field is missing, unknown or out of range, or the output exists.
    """
    try:
        job = kind.model_validate(fields)
    except ValidationError as error:
        raise InputError(str(error)) from error
    run(job)
    dist.destroy_process_group()  # left to the interpreter's end, gloo's threads sometimes abort


def main() -> int:
    """Exit code 0, 2 for a wrong job, 3 when the training fails."""
    text = Path(sys.argv[1]).read_text() if len(sys.argv) > 1 else sys.stdin.read()
    try:
        job: WarmupJob | PairsJob = TypeAdapter[Any](Job).validate_json(text)
        run(job)
    except ValidationError as error:
        print(error, file=sys.stderr)
        return InputError.exit_code
    except ArlError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    from arl.child import die_with_parent
    from arl.train.worker import leave

    die_with_parent()
    leave(main())
