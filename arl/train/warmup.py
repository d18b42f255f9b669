"""The supervised warm-up of a tiny model.

    (a) clean worked answers, uniform lengths ─► until sampled accuracy on fresh problems ≥ target
    (b) noisy answers: most blurted, steps slip ─► a policy with the skill and with bad habits, for RL to remove

Only problems of the training split are shown or asked.
"""

import random
import tempfile
import time
import zlib
from pathlib import Path

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from arl.data.tasks import Task, task_named
from arl.errors import TrainerError
from arl.models.tiny import make_tiny_model
from arl.recipe import Train
from arl.train.sft import Pair, Tuner, WarmupJob, encode, say, scheduled
from arl.types import Problem


def warm_up(job: WarmupJob) -> None:
    """Make, teach and write the model.

    Raises:
        TrainerError: stage (a) did not reach its target.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        make_tiny_model(job.model, task_named(job.task).CHARACTERS, job.seed, path)
        warmer = _Warmer(job, path)
        warmer.teach()
        warmer.spoil()
        warmer.tuner.sharded.save(Path(job.output), tokenizer_path=path)


def sampled_accuracy(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    problems: list[Problem],
    max_new_tokens: int,
) -> float:
    """Mean reward of one sample at temperature 1 for each problem. The prompts have one length."""
    prompts = torch.tensor([tokenizer(p.prompt).input_ids for p in problems])
    with torch.inference_mode():
        output = model.generate(prompts, do_sample=True, top_k=0, top_p=1.0, max_new_tokens=max_new_tokens)
    responses = output[:, prompts.shape[1] :].tolist()
    rewards = []
    for problem, response in zip(problems, responses, strict=True):
        truncated = tokenizer.eos_token_id not in response
        text = tokenizer.decode(response if truncated else response[: response.index(tokenizer.eos_token_id)])
        rewards.append(task.reward(problem, text, truncated))
    return sum(rewards) / len(rewards)


class _Warmer:
    def __init__(self, job: WarmupJob, path: Path) -> None:
        self._job, self._settings, self._task = job, job.warmup, task_named(job.task)
        self._tokenizer = AutoTokenizer.from_pretrained(path)
        self._rng, self._started = random.Random(job.seed), time.perf_counter()
        torch.manual_seed(job.seed)
        self.tuner = Tuner(path, Train(betas=(0.9, 0.98), weight_decay=0.01, threads=job.threads))
        config = AutoConfig.from_pretrained(path)  # its own: the attention's name is part of a config
        self._sampler = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()

    def teach(self) -> None:
        """Stage (a)."""
        s = self._settings
        for step in range(1, s.max_steps + 1):
            loss = self.tuner.step(self._batch(0.0, 0.0), scheduled(step - 1, s.learning_rate, s.max_steps))
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
        return [encode(self._tokenizer, p.prompt, answer) for p, answer in zip(problems, shown, strict=True)]

    def _problem(self, uniform_lengths: bool) -> Problem:
        while True:
            problem = self._task.problem(self._rng, uniform_lengths)
            if is_training(problem, self._job.eval_fraction):
                return problem

    def _evaluate(self, stage: str, step: int, loss: float) -> float:
        problems = [self._problem(uniform_lengths=False) for _ in range(self._settings.eval_samples)]
        self._sampler.load_state_dict(self.tuner.sharded.full_state(torch.float32))
        accuracy = sampled_accuracy(
            self._sampler, self._tokenizer, self._task, problems, self._job.max_new_tokens
        )
        seconds = round(time.perf_counter() - self._started, 2)
        say(stage=stage, step=step, loss=round(loss, 4), accuracy=round(accuracy, 4), seconds=seconds)
        return accuracy


def is_training(problem: Problem, eval_fraction: float) -> bool:
    """The split is a hash of the problem's content."""
    return zlib.crc32(problem.id.encode()) >= eval_fraction * 2**32
