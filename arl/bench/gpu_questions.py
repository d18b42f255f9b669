"""List what only a GPU can settle: one check for each question that a CPU leaves open.

    Check ─► its commands, one after the other, each a process of its own ─► what they print or write ─► one document

`arl bench gpu` runs them (arl/bench/gpu_run.py), and ends a command that takes longer than ten minutes.
"""

import json
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

RANDOM_MODEL = "model.tiny={hidden_size: 1024, layers: 24, heads: 16, intermediate_size: 4096, context: 2048}"
BFLOAT16 = ("--set", "engine.dtype=bfloat16", "--set", "train.dtype=bfloat16")
COLLOCATED = ("--set", "mode=collocated", "--check-weights")
OF_A_STEP = (
    "kl/behavior_proximal",
    "hardware/memory_gb",
    "sync/blocking_seconds",
    "sync/pause_seconds",
    "sync/seconds",
    "time/step_s",
    "time/train_s",
)

Read = Callable[[Path, str], Any]  # directory of the command, what it printed -> its result


class CheckCommand(NamedTuple):
    """Say how one result is made. `{directory}` in an argument stands for a new directory of the command."""

    name: str
    argv: tuple[str, ...]
    read: Read


class Check(NamedTuple):
    """Name a question, and the commands that answer it."""

    name: str
    settles: str
    commands: tuple[CheckCommand, ...]


def read_document(_: Path, printed: str) -> Any:
    """Return the JSON that a benchmark has printed."""
    return json.loads(printed)


def read_tests(directory: Path, _: str) -> dict[str, Any]:
    """Return how many tests passed, and the names of those that did not, from pytest's junit file."""
    suite = ElementTree.parse(directory / "junit.xml").getroot().find("testsuite")
    assert suite is not None, "pytest writes one suite"
    bad: dict[str, list[str]] = {"failure": [], "error": [], "skipped": []}
    for case in suite.iter("testcase"):
        for outcome, names in bad.items():
            if case.find(outcome) is not None:
                names.append(f"{case.get('classname')}.{case.get('name')}")
    return {"tests": int(suite.get("tests", 0)), "seconds": float(suite.get("time", 0)), **bad}


def read_run(directory: Path, _: str) -> dict[str, Any]:
    """Return the summary of the one run in `directory`, and numbers of its first and its last step.

    Raises:
        ValueError: there is no run, or it has no step.
    """
    (summary,) = sorted(directory.glob("*/summary.json"))
    lines = (summary.parent / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    steps = [record for record in records if "time/step_s" in record]
    if not steps:
        raise ValueError(f"{summary.parent.name}/metrics.jsonl: the run ended before its first step")
    named = {"first": steps[0], "last": steps[-1]}
    of_steps = {
        which: {metric: record[metric] for metric in OF_A_STEP if metric in record} for which, record in named.items()
    }
    return {"summary": json.loads(summary.read_text()), "steps": of_steps}


def _arl(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "arl.cli", *arguments)


def _train(recipe: str, *arguments: str) -> tuple[str, ...]:
    return _arl("train", recipe, "--set", "output.directory={directory}", *arguments)


def _tests(*files: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "pytest", "-m", "gpu", "--junitxml", "{directory}/junit.xml", *files)


CHECKS = (
    Check(
        "tests",
        "types, shapes and calls of kernels, trainer and engine that no CPU runs",
        (
            CheckCommand(
                "kernels and trainer", _tests("tests/kernels/test_gpu.py", "tests/train/test_gpu.py"), read_tests
            ),
            CheckCommand("engine", _tests("tests/engine/test_gpu.py"), read_tests),
        ),
    ),
    Check(
        "kernels",
        "head against its floor, MFU and peak memory of a step, by checkpointing and compilation",
        (
            CheckCommand("kernels", _arl("bench", "kernels", "--repeats", "3"), read_document),
            CheckCommand("trainer", _arl("bench", "trainer", "--steps", "3"), read_document),
            CheckCommand(
                "trainer, checkpointing full",
                _arl("bench", "trainer", "--steps", "3", "--checkpointing", "full"),
                read_document,
            ),
            CheckCommand("trainer, compiled", _arl("bench", "trainer", "--steps", "3", "--compile"), read_document),
        ),
    ),
    Check(
        "broadcast",
        "what a broadcast from pinned memory costs a computation beside it, and the reverse",
        (CheckCommand("broadcast", _arl("bench", "broadcast"), read_document),),
    ),
    Check(
        "quickstart",
        "training with arl's own engine, collocated, bfloat16 on both sides, weights compared after every swap",
        (
            CheckCommand(
                "quickstart",
                _train("recipes/quickstart.yaml", *COLLOCATED, *BFLOAT16, "--set", "train.steps=20"),
                read_run,
            ),
        ),
    ),
    Check(
        "publication",
        "snapshot and publication of 1.5B parameters: seconds cold and warm, pinned bytes",
        (CheckCommand("publication", _arl("bench", "publication"), read_document),),
    ),
    Check(
        "sglang",
        "SGLang on the trainer's GPU: start, release and resume of memory, handles, KL at the first step",
        (
            CheckCommand(
                "half a billion parameters",
                _train(
                    "recipes/quickstart-sglang.yaml",
                    *COLLOCATED,
                    *BFLOAT16,
                    "--set",
                    RANDOM_MODEL,
                    "--set",
                    "warmup=false",
                    "--set",
                    "train.steps=4",
                    "--set",
                    "eval.problems=0",
                ),
                read_run,
            ),
        ),
    ),
)
