"""Write run directories whose trajectories are known: real files, made-up episodes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from tokenizers.decoders import Fuse

from arl.metrics.run_files import TRAJECTORIES
from arl.metrics.trajectory_files import SCHEMA
from arl.types import LATE, NOT_SAMPLED, TRAINED

CHARACTERS = "0123456789+= "
PROMPT = "2+2="


def character_ids(text: str) -> list[int]:
    return [CHARACTERS.index(character) for character in text]


def write_tokenizer(run: Path) -> None:
    """Give a run a checkpoint with a tokenizer of one token a character."""
    tokenizer = Tokenizer(models.WordLevel({name: i for i, name in enumerate(CHARACTERS)}, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = Fuse()
    checkpoint = run / "checkpoints" / "step_1"
    checkpoint.mkdir(parents=True)
    tokenizer.save(str(checkpoint / "tokenizer.json"))


def episode(
    group: int, sample: int, trained_at: int | None, response: str, token_ids: Sequence[int] = ()
) -> dict[str, Any]:
    """Make a row of an episode that a version two before its step sampled; the first sample is right."""
    prompt = character_ids(PROMPT)
    ids = list(token_ids or character_ids(response))
    reward = float(sample == 0)
    none = [None] * len(prompt)
    row: dict[str, Any] = {
        "fate": LATE,
        "trained_at": trained_at,
        "group_id": group,
        "problem_id": f"problem-{group}",
        "sample": sample,
        "prompt_length": len(prompt),
        "prompt": PROMPT,
        "response": response,
        "answer": "4",
        "reward": reward,
        "unshaped_reward": reward,
        "reward_parts": [("correct", reward)],
        "reward_error": "",
        "truncated": False,
        "token_ids": prompt + ids,
        "behavior_logprobs": [0.0] * len(prompt) + [-0.5] * len(ids),
        "policy_versions": [NOT_SAMPLED] * len(prompt) + [max(0, (trained_at or 0) - 2)] * len(ids),
        "loss_mask": [False] * len(prompt) + [True] * len(ids),
    }
    if trained_at is not None:
        row |= {"fate": TRAINED, "advantage": 2 * reward - 1}
        row |= {"proximal_logprobs": none + [-0.6] * len(ids), "current_logprobs": none + [-0.4] * len(ids)}
    return row


def steps(first: int, count: int) -> list[dict[str, Any]]:
    """Make the episodes of some steps: half of them right, and one of each step lost."""
    return [
        episode(4 * step + place, sample, None if place == 3 and sample == 1 else step, f"{step}+{place}")
        for step in range(first, first + count)
        for place in range(4)
        for sample in range(2)
    ]


def write_file(run: Path, number: int, rows: Sequence[dict[str, Any]]) -> Path:
    """Write a trajectory file."""
    directory = run / TRAJECTORIES
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{number:06d}.parquet"
    pq.write_table(pa.Table.from_pylist(list(rows), SCHEMA), path)
    return path


def write_run(run: Path, num_steps: int = 12) -> Path:
    """Write a run of some steps in files of ten and with its tokenizer."""
    for number, first in enumerate(range(0, num_steps, 10)):
        write_file(run, number, steps(first, min(10, num_steps - first)))
    write_tokenizer(run)
    return run
