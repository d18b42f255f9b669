"""Whole runs through the command a person types: real engine server, real trainer ranks, real reward worker."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from arl.config.recipe import TinyModel
from arl.launch.run_secrets import FOLDER, KEY
from arl.launch.spawn import RUNNER
from arl.metrics.run_status import read_status
from arl.models.tiny import make_tiny_model
from arl.run.evaluation.during import LOWEST_PRIORITY
from arl.sync.publication_directory import PREFIX
from arl.tasks.running_checksum import CHARACTERS
from tests.cluster.trained_once import assert_trained_once
from tests.forks import ForkedCommand
from tests.metrics.every_step import EVALUATION, EVERY_STEP
from tests.processes import survivors

RECIPE = """\
name: small
model:
  tiny: {hidden_size: 32, layers: 1, heads: 2, intermediate_size: 64}
data: {task: running_checksum, options: {size: 2000}}
rollout: {problems_per_step: 4, group_size: 4, staleness: 2, max_new_tokens: 24}
train: {steps: 5, minibatches: 2, learning_rate: 1.5e-4}
reward: {function: "mine:length"}
deadlines: {reward: 100}
engine: {slots: 32, stream_interval: 4}
eval: {problems: 32}
"""

REWARDS = """\
import glob, os

def length(problem, response):
    # Workers call this in several processes, so the number of scores so far is the size of a file.
    scored = os.path.getsize("scored") if os.path.exists("scored") else 0
    for gate in glob.glob("gate-*"):
        if scored + 1 >= int(gate.removeprefix("gate-")):
            open(gate).close()  # waits until the test has opened it
    with open("scored", "a") as file:
        file.write("x")
    return len(response.text)

"""


FIRST = 32 + 1  # score in training
FROZEN = "arl.train.rank"  # the process that is stopped, not killed


def held_folders(pid: int) -> Iterator[Path]:
    """Yield the folders of weights that a process has locked: a machine may have other runs, and their folders."""
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            folder = Path(os.readlink(file))
            if folder.name.startswith(PREFIX):
                yield folder


class Command:
    """`arl train` in a directory of its own."""

    def __init__(
        self,
        directory: Path,
        *overrides: str,
        resume: bool = False,
        recipe: str | None = None,
        gates: Sequence[int] = (),
        is_forked: bool = True,
        prefix: Sequence[str] = (),
    ) -> None:
        """Without a `recipe`, a small one that needs no warm-up; the scores `gates` wait until they are opened.

        `prefix` begins the command line, as to run it on another machine; it takes `is_forked=False`.
        """
        cache = {"ARL_CACHE": str(directory / "cache")} if recipe is None else {}
        (directory / "recipe.yaml").write_text(recipe or RECIPE)
        (directory / "mine.py").write_text(REWARDS)
        (directory / "scored").unlink(missing_ok=True)
        for number in gates:
            os.mkfifo(directory / f"gate-{number}")
        self._gates: list[int] = []  # opened
        flags = [part for override in overrides for part in ("--set", override)]
        flags += ["--resume"] if resume else []
        self.directory = directory
        arguments = ["train", "recipe.yaml", *flags]
        env = {**os.environ, "WANDB_SILENT": "true", **cache}
        self.process: subprocess.Popen[str] | ForkedCommand
        if is_forked:
            self.process = ForkedCommand(arguments, directory, env)
        else:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "arl.cli", *arguments],
                cwd=directory,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=env,
            )
        self.output = ""
        self.weights: set[Path] = set()  # that it was seen to publish in

    def open_gate(self, number: int) -> None:
        """Let score `number` pass, now and in a run that resumes this one."""
        self._gates.append(os.open(self.directory / f"gate-{number}", os.O_RDWR))

    @property
    def run(self) -> Path:
        return self.directory / "runs" / "small"

    def read_until(self, text: str) -> None:
        """Consume output up to the first line that contains `text`; look where it publishes then."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line
            if text in line:
                self.weights |= set(held_folders(self.process.pid))
                return
        raise AssertionError(f"{text!r} never came:\n{self.output}")

    def weights_left(self) -> list[Path]:
        assert self.weights, "nobody looked while it ran"
        return [folder for folder in self.weights if folder.exists()]

    def processes(self) -> Iterator[tuple[str, psutil.Process]]:
        """Every process of the run, with the module it runs."""
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # ended meanwhile
                for word in process.cmdline():
                    if word.startswith("arl."):
                        yield word, process

    def children(self) -> dict[str, psutil.Process]:
        """By module; of several, the last."""
        return dict(self.processes())

    def end(self) -> int:
        """Wait for the command, as long as a test may take; returns its exit code."""
        assert self.process.stdout is not None
        self.output += self.process.stdout.read()
        return self.process.wait()

    def clear(self) -> None:
        """Nothing of it is left, whatever has happened."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for gate in self._gates:
            os.close(gate)

    def metrics(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Start a command; whatever happens, nothing of it is left afterwards."""
    commands = []

    def begin(*overrides: str, resume: bool = False, gates: Sequence[int] = (), is_forked: bool = True) -> Command:
        commands.append(Command(tmp_path, *overrides, resume=resume, gates=gates, is_forked=is_forked))
        return commands[-1]

    yield begin
    for command in commands:
        command.clear()


def test_a_run_leaves_behind_what_it_promises_and_its_key_in_no_file(start: Callable[..., Command]) -> None:
    """It also measures a version in a process beside it."""
    settings = ("output.wandb=offline", "eval.every=3", "output.keep_checkpoints=1")
    command = start(*settings, gates=[FIRST], is_forked=False)
    command.read_until("accuracy before training")
    key = (command.run / FOLDER / KEY).read_bytes()
    command.open_gate(FIRST)
    assert command.end() == 0, command.output
    assert list((command.run / "wandb").glob("offline-run-*/*.wandb"))
    records = command.metrics()
    steps = [r for r in records if "loss" in r]
    assert [r["step"] for r in steps] == [1, 2, 3, 4, 5]
    assert all(r["staleness/max"] <= 2 for r in steps)
    assert any(r["token_age/mean"] > 0 for r in steps)
    never = {"length/wrong_mean"}  # by this reward, only an empty response is wrong
    assert set().union(*steps) | never == EVERY_STEP
    scores = {r["policy_version"]: r["eval/held_out/accuracy"] for r in records if "loss" not in r}
    assert scores.keys() == {0, 3, 5}
    assert {k for r in records for k in r if k.startswith("eval/")} == EVALUATION
    best = 5 if scores[5] > scores[3] else 3
    checkpoints = command.run / "checkpoints"
    assert (checkpoints / "best").readlink() == Path(f"step_{best}")
    assert {path.name for path in checkpoints.iterdir()} == {"best", f"step_{best}", "step_5"}
    names = {file.name for file in (checkpoints / "step_5").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert_trained_once(command.run, 5)
    assert json.loads((command.run / "trace.json").read_text())
    assert read_status(command.run).end == "finished"
    logs = {file.name for file in (command.run / "logs").glob("*.log")}
    assert logs == {"engine-0.log", "trainer-0.log", "reward.log", "evaluation.log"}
    assert "try next" in command.output
    assert not command.weights_left()
    assert len(key) >= 32 and key.decode() not in command.output
    assert not [file for file in command.run.rglob("*") if file.is_file() and key in file.read_bytes()]


@pytest.mark.slow
def test_weights_that_are_broadcast_and_checked_survive_a_killed_replica_and_then_none_that_answers(
    start: Callable[..., Command],
) -> None:
    """Every replica, and every one that takes its place, has a group of its own; every weight is compared."""
    gate = 8 + 16 * 18
    command = start(
        *("sync={transport: broadcast, check: true}", "engine.replicas=2", "train.steps=24"),
        *("eval.problems=8", "deadlines.generate=10", "deadlines.swap=8"),
        gates=[gate],
    )
    command.read_until("step    6")
    command.children()["arl.engine.embedded.server"].kill()
    command.read_until("restarted in")
    assert re.search(r"was killed by SIGKILL.*; restarted in \d+\.\d s at version \d+; \d+ requests", command.output)
    for module, process in command.processes():
        if module == "arl.engine.embedded.server":
            process.send_signal(signal.SIGSTOP)
    command.open_gate(gate)
    assert command.end() == 0, command.output
    assert "Traceback" not in command.output
    assert "weights travel by broadcast" in command.output
    assert re.search(r"did not answer in time \(.*\) and was killed; restarted in", command.output)
    assert [r["engines/restarts"] for r in command.metrics() if "loss" in r][-1] >= 1
    assert_trained_once(command.run, 24)
    assert not command.weights_left()


@pytest.mark.slow
def test_a_teacher_that_is_killed_is_restarted_and_every_episode_is_scored(
    start: Callable[..., Command], tmp_path: Path
) -> None:
    teacher = tmp_path / "teacher"
    make_tiny_model(TinyModel(hidden_size=32, layers=1, heads=2, intermediate_size=64), CHARACTERS, 5, teacher)
    command = start(f"objective.teacher={{path: {teacher}, alone: true, place: engine}}", "train.steps=12")
    command.read_until("step    4")
    for module, process in command.processes():
        if module == "arl.engine.embedded.server" and str(teacher) in process.cmdline():
            process.kill()
    assert command.end() == 0, command.output
    assert re.search(r"teacher-0 .*was killed by SIGKILL.*; restarted in", command.output)
    assert "Traceback" not in command.output
    assert all("kl/teacher" in record for record in command.metrics() if "loss" in record)
    assert_trained_once(command.run, 12)


def assert_the_frozen_rank_is_named(command: Command, pid: int) -> None:
    """With its role, rank and pid, how long it was waited for, and the end of its log.

    It may have been frozen in a broadcast, too, which is tried twice: within the deadline of a step.
    """
    message = command.output[command.output.index("arl: ") :]
    rank = rf"trainer rank 0 \(pid {pid} on \S+\) at version \d+"
    assert re.search(rf"waited (10|30) s for {rank} to answer", message), message
    assert f"trainer-0 (pid {pid}) is stopped by a signal" in message, message
    assert "logs/trainer-0.log" in message, message
    assert "Traceback" not in message


@pytest.mark.parametrize(
    ("victim", "rule"),
    [
        pytest.param("arl.engine.embedded.server", ["rollout.staleness=2"], marks=pytest.mark.long),
        pytest.param(
            FROZEN,
            ["rollout.staleness=2", "sync.transport=broadcast", "deadlines.step=30", "deadlines.swap=10"],
            marks=pytest.mark.slow,
        ),
        pytest.param("the controller", ["rollout.staleness=null", "rollout.lag=2"], marks=pytest.mark.slow),
    ],
)
def test_after_a_kill_or_a_frozen_rank_a_resumed_run_loses_no_problem_and_trains_none_twice(
    start: Callable[..., Command], victim: str, rule: list[str]
) -> None:
    """The next run also removes the weights that a killed controller has left in memory."""
    settings = ("train.steps=40", "output.checkpoint_every=5", "eval.problems=0", "engine.max_restarts=0", *rule)
    gate = 16 * 22
    command = start(*settings, gates=[gate])
    command.read_until("step   12")
    children = command.children()
    if victim == FROZEN:
        children[victim].send_signal(signal.SIGSTOP)
    else:
        (command.process if victim == "the controller" else children[victim]).kill()
    command.open_gate(gate)
    assert command.end() == (-signal.SIGKILL if victim == "the controller" else 3)
    assert not survivors(list(children.values()))
    if victim == FROZEN:
        assert_the_frozen_rank_is_named(command, children[victim].pid)
    resumed = start(*settings, resume=True)
    assert resumed.end() == 0, resumed.output
    came_from = re.search(r"from step_(\d+)", resumed.output)
    assert came_from is not None
    assert 5 <= int(came_from[1]) <= 35
    assert [r["step"] for r in resumed.metrics()] == list(range(1, 41))
    assert_trained_once(resumed.run, 40)
    assert not command.weights_left()
    if victim == "the controller":
        rows = pq.read_table(resumed.run / "trajectories").to_pylist()
        ages = {(r["trained_at"], r["trained_at"] - v) for r in rows for v in r["policy_versions"] if v >= 0}
        assert ages == {(step, min(step, 2)) for step in range(40)}
    assert json.loads((resumed.run / "trace.json").read_text())


@pytest.mark.long
def test_a_run_that_is_killed_while_versions_wait_measures_each_of_them_once_when_it_is_resumed(
    start: Callable[..., Command],
) -> None:
    settings = ("train.steps=7", "eval.every=2", "output.keep_checkpoints=1")
    killed = start(*settings)
    killed.read_until("step    1")
    process_of(killed, "arl.engine.embedded.server").suspend()
    killed.read_until("versions that are still evaluated")
    killed.process.kill()
    killed.process.wait()
    waiting = re.search(r"still evaluated: (.*)", killed.output)
    assert waiting
    resumed = start(*settings, resume=True)
    assert resumed.end() == 0, resumed.output
    measured = [r["policy_version"] for r in resumed.metrics() if "loss" not in r]
    assert sorted(measured) == [0, 2, 4, 6, 7]
    for version in waiting[1].split(", "):
        assert resumed.output.count(f"evaluation of version {version}:") == 1


def process_of(command: Command, module: str) -> psutil.Process:
    """Wait for the process of a module with the lowest priority."""
    try:
        while True:
            for name, process in command.processes():
                with contextlib.suppress(psutil.NoSuchProcess):  # this one has ended
                    is_runner = RUNNER[-1] in process.cmdline()  # which is about to become it
                    if name == module and not is_runner and process.nice() >= LOWEST_PRIORITY:
                        return process
    except psutil.NoSuchProcess:  # the run has ended
        command.end()
        raise AssertionError(f"no evaluation has begun:\n{command.output}") from None
