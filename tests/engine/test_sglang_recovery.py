"""Real SGLang servers, killed five times under load as a run starts, keeps and routes to them."""

import asyncio
import contextlib
import json
import re
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from arl.config.recipe import Deadlines, Recipe
from arl.engine.router import Router
from arl.launch.base import Process, Resources
from arl.launch.local import LocalLauncher
from arl.launch.trust import RunTrust
from arl.run.engine_pool import connect_engines
from arl.run.engines import EngineServers
from arl.types import StartingVersions
from tests.engine.conftest import KEY as TEST_KEY
from tests.engine.conftest import Weights, within
from tests.engine.test_recovery import Run
from tests.processes import survivors
from tests.run.test_train import Command

SECONDS = 1500
LIMITS = Deadlines(startup=600, step=SECONDS, swap=30, generate=30)
LAUNCHER, SCHEDULER = "python", "sglang::schedul"  # names, as the kernel cuts them


class Watched(LocalLauncher):
    """Knows what runs under each role now, and tells when one that replaces another says something."""

    def __init__(self, logs: Path, heard: Callable[[str], None]) -> None:
        super().__init__(logs, patience=10.0)
        self._heard, self.running = heard, dict[str, Process]()

    async def start(self, role: str, *args: Any, **options: Any) -> Process:
        if role in self.running:
            options["on_line"] = lambda _: self._heard(role)
        self.running[role] = await super().start(role, *args, **options)
        return self.running[role]


class Script:
    """Two servers, and their five deaths: each at its moment, each of another of a server's processes."""

    def __init__(self, model: str, directory: Path) -> None:
        engine = {"kind": "sglang", "replicas": 2, "slots": 8, "stream_interval": 4, "dtype": "float32"}
        self._recipe = Recipe.model_validate(
            {
                "name": "killed",
                "model": {"path": model},
                "data": {"task": "running_checksum"},
                "engine": engine,
                "deadlines": LIMITS.model_dump(),
            }
        )
        self._processes = Watched(directory, self.heard)
        self._versions = StartingVersions(model)
        self._increments = 0
        self.kills: list[str] = []
        self.notes: list[str] = []
        self.everyone: set[psutil.Process] = set()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Router]:
        async with self._processes:
            servers = EngineServers(
                self._recipe, self._versions, [Resources(1)] * 2, self._processes, RunTrust(TEST_KEY)
            )
            async with connect_engines(servers, await servers.start_all(), self.notes.append) as self.router:
                yield self.router
                self._note_everyone()

    def spoke(self) -> None:
        """Both serve: both die. Later the one that serves alone dies, while the other starts."""
        self._increments += 1
        if not self.kills and self._increments > 20:
            self._kill(0, SCHEDULER, "mid-request")
            self._kill(1, LAUNCHER, "mid-request")
        elif len(self.kills) == 4 and self._increments > 10 and self._live():
            self._kill(self._live()[0], LAUNCHER, "mid-request")

    def heard(self, role: str) -> None:
        """The first word of a server that is to take the place of another."""
        if len(self.kills) == 2 and role == "engine-0":
            self._kill(0, LAUNCHER, "while starting")

    def swapping(self) -> None:
        if len(self.kills) == 3:
            asyncio.get_running_loop().call_later(0.02, self._swapping)

    def _swapping(self) -> None:
        if len(self.kills) == 3 and self._live():
            self._kill(self._live()[0], SCHEDULER, "mid-swap")

    def _live(self) -> list[int]:
        return [i for i in self.router._seats.numbers if self.router._seats.replica(i) is not None]

    def _kill(self, seat: int, victim: str, moment: str) -> None:
        self._note_everyone()
        tree = self._tree(self._processes.running[f"engine-{seat}"].pid)
        next(process for process in tree if process.name().startswith(victim)).kill()
        self.kills.append(moment)
        self._increments = 0

    def _note_everyone(self) -> None:
        for server in self._processes.running.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                self.everyone |= set(self._tree(server.pid))

    @staticmethod
    def _tree(pid: int) -> list[psutil.Process]:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]


@pytest.mark.long
@pytest.mark.sglang
@pytest.mark.timeout(SECONDS)
def test_kill_9_of_sglang_servers_again_and_again_changes_nothing_but_time(
    sglang_python: str, old: Weights, new: Weights, tmp_path: Path
) -> None:
    """Every episode is complete, each token's logprob is that of the version it carries; nothing is trained twice."""
    run = Run(tmp_path / "published", old, new, "two", LIMITS)
    script = Script(old.path, tmp_path / "logs")
    within(lambda: run.over(script.open(), script), SECONDS)
    run.check()
    assert script.kills == ["mid-request", "mid-request", "while starting", "mid-swap", "mid-request"]
    assert sum("before it served" in note for note in script.notes) == 1
    resumed = [int(note.rpartition("; ")[2].split()[0]) for note in script.notes if "restarted in" in note]
    assert sum(resumed) > 0
    assert len(resumed) == run.restarts >= 2
    assert not survivors(script.everyone)


@pytest.mark.sglang
def test_a_run_whose_sglang_server_is_killed_says_so_and_goes_on_with_another_one(
    sglang_python: str, tmp_path: Path
) -> None:
    recipe = (Path(__file__).parents[2] / "recipes" / "quickstart-sglang.yaml").read_text()
    short = (
        "name=small",
        "train.steps=8",
        "eval.problems=64",
        "deadlines.startup=600",
        f"engine.python={sglang_python}",
    )
    command = Command(tmp_path, *short, recipe=recipe)
    try:
        command.read_until("step    2")
        tree = psutil.Process(command.process.pid).children(recursive=True)
        victim = next(p for p in tree if any("server_process.py" in word for word in p.cmdline()))
        victim.kill()
        assert command.end() == 0, command.output
    finally:
        command.clear()
    line = rf"engine-0 \(pid {victim.pid}\) was killed by SIGKILL; restarted in \d+\.\d s at version \d+; \d+ requests"
    assert re.search(line, command.output), command.output
    steps = [record for record in command.metrics() if "loss" in record]
    assert [steps[0]["engines/restarts"], steps[-1]["engines/restarts"]] == [0, 1]
    summary = json.loads((command.run / "summary.json").read_text())
    assert summary["groups"] == {"trained": 8 * 32, "in flight": 0}
    assert not survivors(tree)
    assert not command.weights_left()
    log = command.run / "logs" / "engine-0.log"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600, "SGLang prints its settings, the key among them"
