"""Run a supervised job: `python -m arl.train.sft JOB.json`, or the job on standard input.

    demonstrations ─► LossSequence (response-only) ─► pack_groups ─► −logprob ─► AdamW ─► a Hugging Face model directory

A PairsJob tunes any causal model on a jsonl file of {"prompt": text or chat messages, "response": text}; a WarmupJob
(arl.train.warmup) makes a tiny model and teaches it its task, in one process. Every rank of a torchrun world packs
the same pairs and computes its own share. Standard output is one JSON object a line; the last names the result.
"""

import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from pydantic import TypeAdapter, ValidationError

from arl.config.recipe import Train
from arl.config.section import NonNegative, Positive, PositiveFloat, Section
from arl.data.hub import check_model_source
from arl.data.model_limits import ModelShape, model_config
from arl.data.row_problems import MalformedRow, prompt_of
from arl.data.table_rows import Row, read_rows
from arl.data.tokenizer import load_codec
from arl.errors import ArlError, DataError, InputError
from arl.launch.devices import free_memory
from arl.models.load import empty_model
from arl.train.optimizer import Schedule
from arl.train.rank_bytes import ParameterCounts, Workload, rank_bytes
from arl.train.tuner import FLOOR, RAMP, Pair, Tuner, encode, say
from arl.train.warmup import WarmupJob, warm_up

SAY_EVERY = 10  # steps between progress lines


class PairsJob(Section):
    """Fine-tune a causal model on pairs of prompt and response."""

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
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Compute type; auto: bfloat16 on a GPU, float32 on the CPU."""
    seed: NonNegative = 0
    """Of the order of the pairs."""
    threads: Positive = 1
    """CPU threads of each rank."""
    output: str
    """Model directory to write; must not exist."""


Job = WarmupJob | PairsJob  # told apart by `kind`


def tune_pairs(job: PairsJob) -> None:
    """Train on the pairs of a file, and write the model.

    Raises:
        DataError: a line of the file is not a pair, there is none, or the model is not supported.
        InputError: a pair longer than the capacity, or a model larger than memory.
    """
    note = check_model_source(job.model)
    if note is not None:
        print(note, file=sys.stderr)
    codec = load_codec(job.model)
    pairs = [encode(codec, prompt, response) for prompt, response in read_pairs(Path(job.data))]
    if not pairs:
        raise DataError(f"data {job.data}: there is no pair in it; give one JSON object a line")
    longest = max(len(prompt) + len(response) for prompt, response in pairs)
    if longest > job.capacity:
        raise InputError(
            f"capacity {job.capacity}: {job.data} has a pair of {longest} tokens, which a micro-batch must hold: raise "
            "the capacity, or shorten the pair"
        )
    on_gpu = torch.cuda.is_available()
    dtype = job.dtype
    if dtype == "auto":
        dtype = "bfloat16" if on_gpu else "float32"
    train = Train(
        dtype=dtype,
        capacity=job.capacity,
        threads=job.threads,
        betas=(0.9, 0.98),
        weight_decay=0.01,
        ranks=int(os.environ.get("WORLD_SIZE", "1")),
    )
    if int(os.environ.get("RANK", "0")) == 0:  # the others meet it later, before they take memory themselves
        check_memory(job.model, train, min(job.capacity, job.batch_size * longest), on_gpu)
    schedule = schedule_of_pairs(job)
    tuner = Tuner(job.model, train)
    batches = _batches(pairs, job)
    start = time.perf_counter()
    for step in range(1, job.steps + 1):
        loss = tuner.step(next(batches), schedule.rate(step - 1))
        if step % SAY_EVERY == 0 or step == job.steps:
            say(step=step, loss=round(loss, 4), seconds=round(time.perf_counter() - start, 2))
    tuner.policy.save(Path(job.output), tokenizer_path=job.model)


def check_memory(path: str | Path, train: Train, tokens: int, on_gpu: bool) -> None:
    """Refuse a model that cannot fit, before anything is loaded. RL has a planner: arl.run.memory.

    Args:
        tokens: of the largest micro-batch.

    Raises:
        InputError: the model needs more than one GPU's memory on each rank, or than this host has free on all of them.
        DataError: there is no model, or not one that arl supports.
    """
    parameters = ParameterCounts.of(empty_model(path))
    shape = ModelShape.of(model_config(str(path)))
    work = Workload(tokens, accumulates=True, device="cuda" if on_gpu else "cpu")
    per_rank = rank_bytes(parameters, shape, train, work).peak
    if on_gpu:
        where = "a GPU"
        needed = per_rank
        devices = range(torch.cuda.device_count())
        available = min(torch.cuda.get_device_properties(i).total_memory for i in devices)
    else:
        where = "this host"
        needed = per_rank * train.ranks
        available = free_memory()
    if needed > available:
        raise InputError(
            f"model.path {path}: training takes {needed / 1e9:.1f} GB on {train.ranks} ranks with micro-batches of "
            f"{tokens:,} tokens, and {where} has {available / 1e9:.1f} GB: choose a smaller model, shorter "
            "pairs, or more ranks"
        )


def schedule_of_pairs(job: PairsJob) -> Schedule:
    """Return the learning rate of a job: a ramp to the peak, then linear to FLOOR · peak at the last step."""
    return Schedule(
        peak=job.learning_rate,
        ramp=RAMP,
        decay_from=RAMP - 1,
        last=job.steps - 1,
        decay_to=FLOOR,
    )


def _batches(pairs: list[Pair], job: PairsJob) -> Iterator[list[Pair]]:
    """Yield whole batches without end. Every pair comes once an epoch; a batch may span two epochs."""
    rng = random.Random(job.seed)
    waiting: list[Pair] = []
    while True:
        while len(waiting) < job.batch_size:
            waiting += rng.sample(pairs, len(pairs))
        yield waiting[: job.batch_size]
        del waiting[: job.batch_size]


def read_pairs(path: Path) -> Iterator[tuple[str | list[dict[str, str]], str]]:
    """Yield prompt and response of each line of a jsonl file.

    Raises:
        DataError: the file cannot be read, or a line is not a pair.
    """
    for row in read_rows(path, field="data"):
        try:
            yield _pair(row)
        except MalformedRow as error:
            raise DataError(f"{row.place}: {error}") from error


def _pair(row: Row) -> tuple[str | list[dict[str, str]], str]:
    if row.malformed:
        raise MalformedRow(row.malformed)
    missing = {"prompt", "response"} - row.values.keys()
    if missing:
        raise MalformedRow(
            f"a line is {{'prompt': …, 'response': …}}, and this one lacks {' and '.join(sorted(missing))}"
        )
    prompt = prompt_of(row.values["prompt"], "prompt")
    response = row.values["response"]
    if not isinstance(response, str):
        raise MalformedRow(f"column response is {type(response).__name__}, and must be text")
    return prompt, response


def run(job: WarmupJob | PairsJob) -> None:
    """Teach a tiny model its task, or tune a model on pairs.

    Raises:
        InputError: its output exists already.
    """
    if os.path.exists(job.output):
        raise InputError(f"output {job.output} exists already: remove it or choose another")
    if isinstance(job, WarmupJob):
        warm_up(job)
    else:
        tune_pairs(job)
    say(output=job.output)


def run_job(kind: type[WarmupJob] | type[PairsJob], fields: dict[str, Any]) -> None:
    """Check the fields of a job and run it, in a process that does nothing else with torch.distributed.

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
    """Run the job; return exit code 0, 2 for a wrong job, 3 when the training fails."""
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
    from arl.launch.child import exit_immediately

    exit_immediately(main())
