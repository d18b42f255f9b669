"""`arl samples` shows what a run has written, whether it lives, has finished or was killed."""

import io
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from rich.console import Console
from tokenizers import Tokenizer
from tokenizers.decoders import ByteFallback, Fuse, Replace, Sequence
from tokenizers.models import BPE

from arl.errors import InputError
from arl.metrics.sampled_episode import draw, loss_spans, token_texts
from arl.run.samples import Wanted, read_samples
from tests.extending.short_run import ShortRun

STEPS = 2


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps, by a reward that differs within its groups."""
    short = ShortRun(tmp_path_factory.mktemp("finished"), "reward.function=tests.run.test_samples:half")
    return Path(short.train().directory)


def half(problem: object, response: object) -> dict[str, float]:
    """Call responses with a `1` right."""
    text: str = response.text  # type: ignore[attr-defined]
    return {"correct": float("1" in text), "format": 0.5}


def test_the_newest_step_is_shown_one_episode_of_each_problem_first(finished: Path) -> None:
    shown, coverage = read_samples(finished, Wanted(count=3))
    assert [sample.step for sample in shown] == [STEPS] * 3
    assert [sample.sample for sample in shown] == [0, 0, 1]
    assert coverage == f"steps 1 to {STEPS} are in complete files"


def test_a_character_of_several_tokens_is_shown_whole_and_text_keeps_its_spaces() -> None:
    pieces = ["<0xE2>", "<0x88>", "<0x9A>", "\u2581two", "<0xFF>"]
    tokenizer = Tokenizer(BPE({piece: number for number, piece in enumerate(pieces)}, []))
    tokenizer.decoder = Sequence([Replace("\u2581", " "), ByteFallback(), Fuse()])
    row = {
        "token_ids": [3, 3, 0, 1, 2, 3, 4, 4, 0, 1],
        "prompt_length": 1,
        "loss_mask": [False] + 5 * [True] + 4 * [False],
    }
    assert "".join(token_texts(tokenizer, [0, 1, 2, 3])) == "√ two"
    (trained, is_trained), (rest, _) = loss_spans(row, tokenizer)
    assert (trained, is_trained) == (" two√ two", True)
    assert set(rest) == {"\N{REPLACEMENT CHARACTER}"}


def test_a_sample_is_what_was_written(finished: Path) -> None:
    ((sample,), _) = read_samples(finished, Wanted(count=1, step=1))
    (row,) = [
        row
        for row in pq.read_table(finished / "trajectories").to_pylist()
        if (row["group_id"], row["sample"], row["trained_at"]) == (sample.group_id, sample.sample, 0)
    ]
    assert (sample.prompt, sample.response, sample.answer) == (row["prompt"], row["response"], row["answer"])
    assert sample.prompt.startswith("<bos>")
    assert sample.parts == {"correct": float("1" in sample.response), "format": 0.5}
    assert sample.reward == sum(sample.parts.values())
    assert sample.advantage == row["advantage"]
    assert sample.length == sum(row["loss_mask"])
    assert (sample.age, sample.oldest_version) == (0, 0)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (Wanted(step=9), r"--step 9: of .* steps 1 to 2 are in complete files"),
        (Wanted(problem="nobody"), "--problem nobody: .* has no episode of it"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(finished: Path, wanted: Wanted, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_samples(finished, wanted)


def test_what_a_tool_said_is_dim_because_it_is_not_trained(tmp_path: Path) -> None:
    short = ShortRun(tmp_path, "rollout.env=tests.extending.my_env:ask_twice")
    ((sample, *_), _) = read_samples(Path(short.train().directory), Wanted(count=9))
    assert ("==", False) in sample.spans
    screen = io.StringIO()
    Console(file=screen, color_system="standard", force_terminal=True).print(draw(sample))
    assert "\x1b[2m==\x1b[0m" in screen.getvalue()
