"""Write run directories whose trajectories are known: real files, made-up episodes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from tokenizers.decoders import Fuse

from arl.metrics.episode_table import SCHEMA
from arl.metrics.run_files import TRAJECTORIES
from arl.types import LATE, NOT_SAMPLED, TRAINED

CHARACTERS = "0123456789+= "
PROMPT = "2+2="
GROUP_SIZE = 2
GROUPS_OF_A_STEP = 4
STEP_SECONDS = 1.0


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
    group: int = 0,
    sample: int = 0,
    trained_at: int | None = 0,
    response: str = "4",
    token_ids: Sequence[int] | None = None,
    versions: Sequence[int] | None = None,
    is_right: bool = True,
    **columns: Any,
) -> dict[str, Any]:
    """Make a row; tokens are those of the response unless they are given."""
    prompt = character_ids(PROMPT)
    ids = list(token_ids if token_ids is not None else character_ids(response))
    own_versions = list(versions if versions is not None else [max(0, (trained_at or 0) - 1)] * len(ids))
    is_trained = trained_at is not None
    none = [None] * len(prompt)
    row = {
        "fate": TRAINED if is_trained else LATE,
        "trained_at": trained_at,
        "group_id": group,
        "problem_id": f"problem-{group}",
        "sample": sample,
        "dispatch_version": min(own_versions, default=0),
        "dispatch_time": float(trained_at or 0) - 0.8,
        "arrival_version": trained_at or 0,
        "arrival_time": float(trained_at or 0) - 0.1,
        "prompt_length": len(prompt),
        "prompt": PROMPT,
        "response": response,
        "answer": "4",
        "reward": float(is_right),
        "unshaped_reward": float(is_right),
        "reward_parts": [("correct", float(is_right))],
        "reward_error": "",
        "truncated": False,
        "advantage": (1.0 if is_right else -1.0) if is_trained else None,
        "advantages": None,
        "token_ids": prompt + ids,
        "behavior_logprobs": [0.0] * len(prompt) + [-0.5] * len(ids),
        "policy_versions": [NOT_SAMPLED] * len(prompt) + own_versions,
        "loss_mask": [False] * len(prompt) + [True] * len(ids),
        "proximal_logprobs": none + [-0.6] * len(ids) if is_trained else None,
        "current_logprobs": none + [-0.4] * len(ids) if is_trained else None,
    }
    return row | columns


def steps(first: int, count: int) -> list[dict[str, Any]]:
    """Make the episodes of some steps: half of them right, and one of each step lost."""
    rows = []
    for step in range(first, first + count):
        for place in range(GROUPS_OF_A_STEP):
            group = step * GROUPS_OF_A_STEP + place
            for sample in range(GROUP_SIZE):
                is_lost = place == 3 and sample == 1
                row = episode(
                    group=group,
                    sample=sample,
                    trained_at=None if is_lost else step,
                    response=f"{step}+{place}",
                    versions=[max(0, step - 2), max(0, step - 1), max(0, step - 1)][: len(f"{step}+{place}")]
                    + [max(0, step - 1)] * (len(f"{step}+{place}") - 3),
                    is_right=sample == 0,
                    dispatch_time=step * STEP_SECONDS - 1.6 + 0.1 * place,
                    arrival_time=step * STEP_SECONDS - 0.2,
                )
                rows.append(row)
    return rows


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
