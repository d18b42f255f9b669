"""Count the files of the four walks that docs/design.md draws, in a real run, and let no walk grow.

    .venv/bin/python -m tests.test_walks        prints each walk with its files; copy the numbers to TODAY

A walk is the set of arl's files whose functions see what travels on it; tests/walks.py records it.
"""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from tests import walks

TODAY = {  # the walks, with what researchers train with; a change that lengthens one says why
    "a recipe before the first step": 110,  # goal: 35
    "a token's logprob from the engine to the gradient": 26,  # 15
    "a reward": 10,  # 8
    "a version's weights from the trainer to an engine's memory": 13,  # 12
}
RECIPE = """\
name: walk
model: {tiny: {hidden_size: 32, layers: 1, heads: 2, intermediate_size: 64}}
data: {task: running_checksum, options: {size: 100}}
reward: {function: "tests.walks:reward"}
rollout: {problems_per_step: 2, group_size: 2, max_new_tokens: 8}
train: {steps: 2, minibatches: 1}
eval: {problems: 0}
output: {checkpoint_every: 1}
"""
VERSION = 1  # whose weights are followed


def count(folder: Path) -> dict[str, set[str]]:
    """Train for two steps; return the files of each walk."""
    (folder / "walk.yaml").write_text(RECIPE)
    seen = walks.run(folder / "walk.yaml", folder)
    run = folder / "runs" / "walk"
    logprobs = set(_sampled_logprobs(run))
    weights = _first_elements(run / "checkpoints" / f"step_{VERSION}") - _first_elements(run / "model")
    published = {text for texts in seen.values.values() for text in texts if re.search(rf"/v{VERSION}$", text)}
    rewards = {walks.written(walks.REWARD), walks.written(2 * walks.REWARD)}
    return {
        "a recipe before the first step": seen.started,
        "a token's logprob from the engine to the gradient": _of_rooms(
            seen.holders(logprobs), "engine", "rollout", "train", "kernels"
        ),
        "a reward": _of_rooms(seen.holders(rewards, shallow=True), "reward", "rollout", "run"),
        "a version's weights from the trainer to an engine's memory": _of_rooms(
            seen.holders(weights | published), "train", "sync", "rollout", "engine", "launch"
        ),
    }


def _of_rooms(files: set[str], *rooms: str) -> set[str]:
    """Leave out who only looks on: metrics, records and checkpoints."""
    return {file for file in files if file.removeprefix("arl/").partition("/")[0] in rooms}


def _sampled_logprobs(run: Path) -> Iterator[str]:
    for row in pq.read_table(run / "trajectories").to_pylist():
        for logprob, version in zip(row["behavior_logprobs"], row["policy_versions"], strict=True):
            if version >= 0:
                yield walks.written(logprob)


def _first_elements(model: Path) -> set[str]:
    """Return the first number of every weight of a model."""
    weights = load_file(model / "model.safetensors")
    return {walks.written(float(tensor.reshape(-1)[0])) for tensor in weights.values()}


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    return count(tmp_path_factory.mktemp("walks"))


@pytest.mark.long  # every call of a function is recorded: minutes
@pytest.mark.parametrize("walk", TODAY)
def test_no_walk_grows(counted: dict[str, set[str]], walk: str) -> None:
    files = counted[walk]
    assert 0 < len(files) <= TODAY[walk], "\n".join(sorted(files))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        for walk, files in count(Path(directory)).items():
            print("\n    ".join([f"{walk}: {len(files)} files", *sorted(files)]))
