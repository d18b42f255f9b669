"""Warm up a tiny model by supervised training: `python -m arl.train.warmup JOB.json`.

    make_tiny_model ─► for each stage: demonstrations ─► Tuner ─► until its accuracy is reached, or its steps are over
                                                                                         └─► model directory

A task declares the stages (arl.tasks.base.WarmupStage): what is shown, what is asked, and when it ends. Standard output
is one JSON object a line, as of `arl sft`.
"""

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from transformers import PreTrainedModel

from arl.config.recipe import Data, TinyModel
from arl.config.section import NonNegative, Positive, Section
from arl.data.tokenizer import HuggingFaceCodec, load_codec
from arl.engine.embedded.batching import EmbeddedEngine
from arl.errors import ArlError, EngineError, TrainerError
from arl.launch.child import exit_immediately
from arl.launch.scratch_directory import removed_with_us
from arl.models.load import load_model
from arl.models.tiny import make_tiny_model
from arl.reward.grading import accuracy_of, make_grade
from arl.tasks.base import RewardFunction, WarmupStage
from arl.tasks.registry import open_task
from arl.train.optimizer import Schedule
from arl.train.sft import FLOOR, RAMP, Pair, Tuner, encode, say
from arl.types import GenerateRequest, Problem, Response, SamplingParams


class WarmupJob(Section):
    """Make a tiny model and teach it its task."""

    model: TinyModel
    """Shape of the model to make."""
    task: str
    """Name of the task; its vocabulary is the model's."""
    options: dict[str, Any] = Field(default={})
    """The task's own settings."""
    batch_size: Positive = 64
    """Sequences of an optimizer step."""
    eval_every: Positive = 20
    """Optimizer steps between sampled evaluations, in a stage that ends at an accuracy."""
    eval_samples: Positive = 256
    """Problems of a sampled evaluation."""
    seed: NonNegative = 0
    """Of the model's first weights and of the demonstrations."""
    max_new_tokens: Positive = 48
    """Longest response of an evaluation, tokens."""
    threads: Positive = 1
    """CPU threads."""
    output: str
    """Model directory to write; must not exist."""


def warm_up(job: WarmupJob) -> None:
    """Make, teach and write the model.

    Raises:
        TrainerError: a stage did not reach its accuracy.
    """
    task = open_task(Data(task=job.task, options=job.options))
    assert task.characters is not None, "the run has checked the recipe's task"
    directory = Path(tempfile.mkdtemp(prefix="arl-warm-up-"))
    with removed_with_us(directory):
        path = directory / "model"
        make_tiny_model(job.model, task.characters, job.seed, path, task.marks, task.chat_template)
        teacher = _Teacher(job, task.reward, path)
        for stage in task.warmup():
            teacher.teach(stage)
        teacher.tuner.policy.save(Path(job.output))
    say(output=job.output)


async def sampled_accuracy(
    model: PreTrainedModel,
    codec: HuggingFaceCodec,
    reward: RewardFunction,
    problems: Sequence[Problem],
    max_new_tokens: int,
    seed: int,
) -> float:
    """Return the accuracy of one response to each problem, sampled at temperature 1 in a single turn."""
    requests = []
    for i, problem in enumerate(problems):
        sampling = SamplingParams(max_new_tokens, stop_token_ids=codec.stop_token_ids, seed=seed + i)
        requests.append(GenerateRequest(str(i), codec.encode_problem(problem), sampling))
    responses: list[list[int]] = [[] for _ in problems]
    rewards: dict[int, float] = {}
    async with EmbeddedEngine(model, slots=len(problems), stream_interval=max_new_tokens) as engine:
        stream = engine.submit(requests)
        while len(rewards) < len(problems):
            for i, increment in await stream.take():
                if isinstance(increment, EngineError):
                    raise increment
                responses[i] += increment.token_ids
                if increment.finish_reason is not None:
                    text = codec.decode(tuple(responses[i]))
                    truncated = increment.finish_reason != "stop"
                    response = Response(text, truncated, len(responses[i]), max_new_tokens)
                    rewards[i] = accuracy_of(make_grade(reward(problems[i], response), {}))
    return sum(rewards.values()) / len(rewards)


class _Teacher:
    """Teach one model stage by stage. All that is drawn comes from one generator, seeded by the job."""

    def __init__(self, job: WarmupJob, reward: RewardFunction, path: Path) -> None:
        self._job = job
        self._reward = reward
        self._codec = load_codec(str(path))
        self._sampler = load_model(path, "float32")
        self._rng = random.Random(job.seed)
        self._started = time.perf_counter()
        self.tuner = Tuner(path, dtype="float32", threads=job.threads)

    def teach(self, stage: WarmupStage) -> None:
        """Train until the stage's accuracy is reached, or for all of its steps if it has none.

        Raises:
            TrainerError: the accuracy was not reached within the steps.
        """
        loss = 0.0
        schedule = schedule_of_stage(stage)
        for step in range(1, stage.steps + 1):
            loss = self.tuner.step(self._batch(stage), schedule.rate(step - 1))
            if stage.target_accuracy is None or step % self._job.eval_every:
                continue
            if self._evaluate(stage, step, loss) >= stage.target_accuracy:
                return
        if stage.target_accuracy is not None:
            raise TrainerError(
                f"warm-up, {stage.name}: sampled accuracy is still below {stage.target_accuracy} after {stage.steps} "
                "steps: give the stage more steps or a lower accuracy in data.options, or try another seed"
            )
        self._evaluate(stage, stage.steps, loss)

    def _batch(self, stage: WarmupStage) -> list[Pair]:
        shown = stage.demonstrate(self._rng, self._job.batch_size)
        return [encode(self._codec, problem.prompt, response) for problem, response in shown]

    def _evaluate(self, stage: WarmupStage, step: int, loss: float) -> float:
        problems = stage.ask(self._rng, self._job.eval_samples)
        self._sampler.load_state_dict(self.tuner.policy.full_state(torch.float32))
        seed = self._rng.getrandbits(31)
        sampled = sampled_accuracy(self._sampler, self._codec, self._reward, problems, self._job.max_new_tokens, seed)
        accuracy = asyncio.run(sampled)
        seconds = round(time.perf_counter() - self._started, 2)
        say(stage=stage.name, step=step, loss=round(loss, 4), accuracy=round(accuracy, 4), seconds=seconds)
        return accuracy


def schedule_of_stage(stage: WarmupStage) -> Schedule:
    """Return the learning rate of a stage: constant, or a ramp under a decay that begins at step 0.

    Under the latter the rate stays below the peak, by 6 % with 800 steps. The quickstart's settings were found with it.
    """
    if stage.schedule == "constant":
        return Schedule(peak=stage.learning_rate, last=stage.steps)
    return Schedule(peak=stage.learning_rate, ramp=RAMP, last=stage.steps, decay_to=FLOOR)


def main() -> int:
    """Run the job of arl.run.starting_model; return the exit code of an error, after its message."""
    try:
        warm_up(WarmupJob.model_validate_json(Path(sys.argv[1]).read_bytes()))
    except ArlError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    exit_immediately(main())
