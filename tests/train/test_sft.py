"""Supervised fine-tuning and the warm-up."""

import contextlib
import io
import json
import random
import signal
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from arl.config.recipe import TinyModel
from arl.data.tokenizer import HuggingFaceCodec
from arl.errors import DataError, InputError, RunStopped, TrainerError
from arl.tasks import running_checksum
from arl.tasks.running_checksum import ChecksumOptions
from arl.train.sft import encode, read_examples, tune
from arl.train.warmup import WarmupJob, warm_up
from tests.data.chat_tokenizers import TURNS, chat_tokenizer

pytestmark = pytest.mark.usefixtures("alone")

SHAPE = TinyModel(hidden_size=32, layers=1, heads=2, intermediate_size=32)


def test_a_model_is_tuned_on_pairs_and_each_line_is_json(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(0)
    problems = [running_checksum.draw_problem(rng) for _ in range(40)]
    rows = [{"prompt": p.prompt, "response": running_checksum.demonstrate(p, rng)} for p in problems]
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("\n".join(map(json.dumps, rows)))
    out = tmp_path / "out"
    job = {"model": str(tiny), "data": str(pairs), "output": str(out), "steps": 60, "batch_size": 16}
    tune(job | {"learning_rate": 1e-2})
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == {"pairs": 40, "steps": 60, "dtype": "float32", "threads": 1}
    assert [line["step"] for line in lines[1:4]] == [3, 10, 20]
    assert lines[1]["seconds_left"] >= 0
    assert lines[-2]["loss"] < lines[1]["loss"] - 0.2
    assert lines[-1] == {"output": str(out)}
    assert AutoModelForCausalLM.from_pretrained(out).dtype == torch.float32
    assert len(AutoTokenizer.from_pretrained(out)) == 16
    with pytest.raises(InputError, match="exists already"):
        tune(job)


class InterruptingOutput(io.StringIO):
    """Send Ctrl-C to this process when a line that holds `event` is written."""

    def __init__(self, event: str) -> None:
        super().__init__()
        self._event = event

    def write(self, text: str) -> int:
        if self._event in text:
            signal.raise_signal(signal.SIGINT)
        return super().write(text)


def test_ctrl_c_ends_fine_tuning_with_a_whole_model_in_the_place_of_the_last_save(tiny: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text('{"prompt": "0=", "response": "0#0"}')
    out = tmp_path / "out"
    job = {"model": str(tiny), "data": str(pairs), "output": str(out), "steps": 9000, "save_every": 4}
    output = InterruptingOutput('"step": 10')
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which pytest in a script's background ignores
    with (
        contextlib.redirect_stdout(output),
        pytest.raises(RunStopped, match=r"stopped after step 11 of 9000; .*out holds"),
    ):
        tune(job | {"batch_size": 1, "learning_rate": 1e-2})
    assert [path.name for path in tmp_path.iterdir() if path != pairs] == ["out"]
    AutoModelForCausalLM.from_pretrained(out)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_every_answer_of_a_conversation_is_learned_up_to_the_token_that_ends_its_turn(tmp_path: Path) -> None:
    tokenizer = chat_tokenizer(TURNS)
    tokenizer.eos_token = "<eos>"  # which the template does not write
    codec = HuggingFaceCodec(tokenizer)
    roles = ["user", "assistant", "user", "assistant"]
    messages = [{"role": role, "content": f"{role}{i}"} for i, role in enumerate(roles)]
    messages[3]["content"] += "<|end|>"  # as in data that was rendered before
    data = tmp_path / "chats.jsonl"
    data.write_text(json.dumps({"messages": messages}))
    pairs = [encode(codec, prompt, response) for _, prompt, response in read_examples(data)]
    learned = [tokenizer.decode(response) for _, response in pairs]
    assert learned == ["assistant1<|end|>", "assistant3<|end|>"]
    assert tokenizer.decode(pairs[1][0]).endswith(
        "<|start|>assistant\nassistant1<|end|>\n<|start|>user\nuser2<|end|>\n<|start|>assistant\n"
    )


def warmup_job(directory: Path) -> WarmupJob:
    return WarmupJob(
        model=SHAPE,
        task="running_checksum",
        eval_every=2,
        eval_samples=8,
        batch_size=4,
        max_new_tokens=8,
        output=str(directory / "out"),
    )


def test_the_warm_up_writes_a_model_once_its_target_is_reached(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChecksumOptions, "skill_accuracy", 0.0)
    monkeypatch.setattr(ChecksumOptions, "habit_steps", 2)
    job = warmup_job(tmp_path)
    warm_up(job)
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line.get("stage"), line.get("step")) for line in said] == [
        ("learning the task", 2),
        ("with bad habits", 2),
        (None, None),
    ]
    assert AutoModelForCausalLM.from_pretrained(job.output).config.hidden_size == 32


def test_a_warm_up_that_misses_its_target_fails_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChecksumOptions, "skill_accuracy", 1.0)
    monkeypatch.setattr(ChecksumOptions, "skill_steps", 2)
    with pytest.raises(TrainerError, match=r"learning the task: sampled accuracy is still below 1\.0 after 2 steps"):
        warm_up(warmup_job(tmp_path))
    assert not (tmp_path / "out").exists()


def test_a_row_that_cannot_be_learned_is_named(tiny: Path, tmp_path: Path) -> None:
    data = tmp_path / "bad.jsonl"
    fields = {"model": str(tiny), "data": str(data), "steps": 1, "output": str(tmp_path / "out")}
    good = '{"prompt": "0=", "response": "0#0"}'
    for bad, complaint in (
        ('{"prompt": "1="}', "missing required field `response`"),
        ('{"prompt": "1=", "response": 1}', "Expected `str`, got `int`"),
        ('{"messages": [{"role": "user", "content": "1="}]}', "no message of the column messages is an assistant's"),
        (
            json.dumps({"prompt": "1=", "response": "1" * 600}),
            "604 tokens; the context of the model is 512: shorten the row",
        ),
    ):
        data.write_text(f"{good}\n{bad}")
        with pytest.raises(DataError, match=f"bad.jsonl:2: .*{complaint}"):
            tune(fields)
