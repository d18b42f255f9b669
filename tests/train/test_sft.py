"""Supervised fine-tuning and the warm-up."""

import json
import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from arl.config.recipe import TinyModel
from arl.errors import DataError, InputError, TrainerError
from arl.tasks import running_checksum
from arl.tasks.running_checksum import ChecksumOptions
from arl.train.sft import tune
from arl.train.warmup import WarmupJob, warm_up

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
    assert lines[-2]["loss"] < lines[0]["loss"] - 0.2
    assert lines[-1] == {"output": str(out)}
    assert AutoModelForCausalLM.from_pretrained(out).dtype == torch.float32
    assert len(AutoTokenizer.from_pretrained(out)) == 16
    with pytest.raises(InputError, match="exists already"):
        tune(job)


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


def test_a_line_that_is_no_pair_is_named(tiny: Path, tmp_path: Path) -> None:
    data = tmp_path / "bad.jsonl"
    fields = {"model": str(tiny), "data": str(data), "steps": 1, "output": str(tmp_path / "out")}
    good = '{"prompt": "0=", "response": "0#0"}'
    for bad, complaint in (
        ('{"prompt": "1="}', "missing required field `response`"),
        ('{"prompt": "1=", "response": 1}', "Expected `str`, got `int`"),
    ):
        data.write_text(f"{good}\n{bad}")
        with pytest.raises(DataError, match=f"bad.jsonl:2: .*{complaint}"):
            tune(fields)
