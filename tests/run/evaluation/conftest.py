"""Provide a model of a few thousand weights, a user's suite for it, and `arl eval` in a directory of its own."""

import json
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from arl.config.recipe import TinyModel
from arl.models.tiny import make_tiny_model
from tests.forks import arl

CONTEXT = 64
SHAPE = TinyModel(hidden_size=32, layers=1, heads=2, intermediate_size=64, context=CONTEXT)
SUITES = """\
import os

from arl.config.section import Positive, Section
from arl.tasks.base import Task
from arl.types import Problem

scored = 0

class Options(Section):
    size: Positive = 30
    \"\"\"Problems.\"\"\"

class Digits(Task):
    Options = Options
    characters = "0123456789=#"

    def __init__(self, options):
        self.options = options

    def problems(self, split, seed):
        return [Problem(f"{i}=", answer=str(i % 10)) for i in range(self.options.size)] if split == "evaluation" else []

    @staticmethod
    def extract(response):
        return response.text[:1]

    @staticmethod
    def reward(problem, response):
        global scored
        scored += 1
        if os.path.exists(gate := f"gate-{scored}"):
            open(gate).close()  # waits until the test has opened it
        return {"correct": float(response.text[:1] in (problem.answer, "1", "2", "3")), "format": 1.0}
"""
FLAGS = ("--suite", "mine:Digits", "--samples", "4", "--max-new-tokens", "8")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of an untrained model."""
    directory = tmp_path_factory.mktemp("model") / "tiny"
    make_tiny_model(SHAPE, "0123456789=#", 0, directory)
    return directory


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with mine.py, in which several tests evaluate."""
    directory = tmp_path_factory.mktemp("place")
    (directory / "mine.py").write_text(SUITES)
    return directory


@pytest.fixture(scope="session")
def finished(model: Path, place: Path) -> CompletedProcess[str]:
    """Evaluate mine:Digits into place/whole, once for all tests."""
    return run_eval(model, *FLAGS, "--output", "whole", "--logs", "logs/whole", cwd=place)  # neither exists


def run_eval(model: Path, *flags: str, cwd: Path) -> CompletedProcess[str]:
    return arl("eval", str(model), *flags, cwd=cwd)


def score_of(directory: Path) -> dict[str, Any]:
    """Return the score of the only suite in a directory."""
    ((entry),) = json.loads((directory / "scores.json").read_text())
    score: dict[str, Any] = entry["score"]
    return score


def rows_of(directory: Path, suite: str = "mine.Digits") -> list[dict[str, Any]]:
    """Return the samples of a suite, problem by problem."""
    rows = [json.loads(line) for line in (directory / f"{suite}.jsonl").read_text().splitlines()]
    return sorted(rows, key=lambda row: (int(row["prompt"].rstrip("=")), row["sample"]))
