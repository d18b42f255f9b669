"""The supervised warm-up of a tiny model.

    (a) clean worked answers, uniform lengths ─► until sampled accuracy on fresh problems ≥ target
    (b) noisy answers: most blurted, steps slip ─► a policy with the skill and with bad habits, for RL to remove

Only problems of the training split are shown or asked.
"""

import asyncio
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Literal

import torch
from transformers import PreTrainedModel

from arl.config.recipe import TinyModel, Train, Warmup
from arl.config.section import Fraction, NonNegative, Positive, Section
from arl.data.problems import is_held_out
from arl.data.tokenizer import HuggingFaceCodec, load_codec
from arl.engine.embedded.batching import EmbeddedEngine
from arl.errors import InputError, TrainerError
from arl.models.load import load_model
from arl.models.tiny import make_tiny_model
from arl.tasks.registry import Task, task_named
from arl.train.schedule import Schedule
from arl.train.tuner import FLOOR, RAMP, Pair, Tuner, encode, say
from arl.types import GenerateRequest, Problem, SamplingParams


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


def warm_up(job: WarmupJob) -> None:
    """Make, teach and write the model.

    Raises:
        InputError: started as several ranks.
        TrainerError: stage (a) did not reach its target.
    """
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise InputError("a warm-up trains a tiny model: start it as one process, without torchrun")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        make_tiny_model(job.model, task_named(job.task).CHARACTERS, job.seed, path)
        warmer = _Warmer(job, path)
        warmer.teach()
        warmer.spoil()
        warmer.tuner.sharded.save(Path(job.output), tokenizer_path=path)


async def sampled_accuracy(
    model: PreTrainedModel, codec: HuggingFaceCodec, task: Task, problems: list[Problem], max_new_tokens: int, seed: int
) -> float:
    """Mean reward of one answer to each problem, sampled at temperature 1."""
    params = [
        SamplingParams(max_new_tokens, stop_token_ids=codec.stop_token_ids, seed=seed + i) for i in range(len(problems))
    ]
    requests = [GenerateRequest(str(i), codec.encode_problem(problem), params[i]) for i, problem in enumerate(problems)]
    answers: list[list[int]] = [[] for _ in problems]
    rewards: dict[int, float] = {}
    async with EmbeddedEngine(model, slots=len(problems), stream_interval=max_new_tokens) as engine:
        stream = engine.submit(requests)
        while len(rewards) < len(problems):
            for i, increment in await stream.take():
                answers[i] += increment.token_ids
                if increment.finish_reason is not None:
                    truncated = increment.finish_reason != "stop"
                    rewards[i] = task.reward(problems[i], codec.decode(tuple(answers[i])), truncated)
    return sum(rewards.values()) / len(rewards)


def schedule_of_warmup(settings: Warmup) -> Schedule:
    """A ramp under a decay that begins at step 0: the rate stays below the peak, by 6 % with 800 steps at most.

    Target accuracies and the cached models of the quickstarts were made with it.
    """
    return Schedule(
        peak=settings.learning_rate,
        ramp=RAMP,
        last=settings.max_steps,
        decay_to=FLOOR,
    )


class _Warmer:
    def __init__(self, job: WarmupJob, path: Path) -> None:
        self._job, self._settings, self._task = job, job.warmup, task_named(job.task)
        self._codec, self._sampler = load_codec(str(path)), load_model(path, "float32")
        self._rng, self._started = random.Random(job.seed), time.perf_counter()
        self.tuner = Tuner(path, Train(betas=(0.9, 0.98), weight_decay=0.01, threads=job.threads))

    def teach(self) -> None:
        """Stage (a)."""
        s = self._settings
        schedule = schedule_of_warmup(s)
        for step in range(1, s.max_steps + 1):
            loss = self.tuner.step(self._batch(0.0, 0.0), schedule.rate(step - 1))
            if step % s.eval_every == 0 and self._evaluate("a", step, loss) >= s.target_accuracy:
                return
        raise TrainerError(
            f"warm-up: sampled accuracy is still below warmup.target_accuracy {s.target_accuracy} after "
            f"warmup.max_steps {s.max_steps}: raise max_steps or try another seed"
        )

    def spoil(self) -> None:
        """Stage (b)."""
        s, loss = self._settings, 0.0
        for _ in range(s.noise_steps):
            loss = self.tuner.step(self._batch(s.blurt, s.slip), s.noise_learning_rate)
        self._evaluate("b", s.noise_steps, loss)

    def _batch(self, blurt: float, slip: float) -> list[Pair]:
        problems = [self._problem(uniform_lengths=True) for _ in range(self._settings.batch_size)]
        shown = [self._task.demonstration(problem, self._rng, blurt, slip) for problem in problems]
        return [encode(self._codec, p.prompt, answer) for p, answer in zip(problems, shown, strict=True)]

    def _problem(self, uniform_lengths: bool) -> Problem:
        while True:
            problem = self._task.problem(self._rng, uniform_lengths)
            if not is_held_out(problem, self._job.eval_fraction):
                return problem

    def _evaluate(self, stage: str, step: int, loss: float) -> float:
        problems = [self._problem(uniform_lengths=False) for _ in range(self._settings.eval_samples)]
        self._sampler.load_state_dict(self.tuner.sharded.full_state(torch.float32))
        accuracy = asyncio.run(
            sampled_accuracy(
                self._sampler, self._codec, self._task, problems, self._job.max_new_tokens, self._rng.getrandbits(31)
            )
        )
        seconds = round(time.perf_counter() - self._started, 2)
        say(stage=stage, step=step, loss=round(loss, 4), accuracy=round(accuracy, 4), seconds=seconds)
        return accuracy
