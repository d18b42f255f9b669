"""Real engine servers, killed again and again under a real controller: nothing is lost, nothing is trained twice."""

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest

from arl.config.recipe import Deadlines, Rollout
from arl.data.problems import ProblemOrder
from arl.engine.router import Router
from arl.rollout.controller import Controller
from arl.rollout.env import single_turn
from arl.rollout.episodes import Episodes
from arl.rollout.exact_lag import LagSchedule
from arl.rollout.filters import keep_all
from arl.rollout.lease import NoLease
from arl.rollout.segment import Segment
from arl.rollout.staleness import StalenessGate
from arl.types import Batch, GenerateRequest, Increment, Problem, StepResult, SwapReport, Trajectory, WeightUpdate
from tests.engine.conftest import Weights, within
from tests.engine.forked import Servers
from tests.fakes import NullCheckpoints, NullCodec, NullObserver, NullRewards, NullTrainer

LIMITS = Deadlines(startup=120, step=120, swap=10, generate=10)


class Ghost(Protocol):
    """Kills servers."""

    def spoke(self) -> None: ...

    def swapping(self) -> None: ...


class Killer:
    """Kills a server after some increments, in the middle of some swaps, and some that have only just started."""

    def __init__(self, servers: Servers, rng: random.Random, kills: int) -> None:
        self._servers, self._rng, self._left = servers, rng, kills
        self._increments = 20
        self.kills: Counter[str] = Counter()
        servers.on_start = self.started

    def spoke(self) -> None:
        """13 of these are fewer increments than a run has, whoever else is killed meanwhile."""
        self._increments -= 1
        living = [seat for seat, server in self._servers.running.items() if server.exit_code is None]
        if self._increments <= 0 and living:
            self._increments = self._rng.randrange(30, 140)
            self._kill(self._rng.choice(living), "serving")

    def swapping(self) -> None:
        if not self.kills["at a swap"] or self._rng.random() < 0.8:
            self._soon(self._rng.randrange(self._servers.count), "at a swap", 0.02)

    def started(self, seat: int) -> None:
        if self._rng.random() < 0.15:
            self._soon(seat, "at its start", 0.2)

    def _soon(self, seat: int, moment: str, seconds: float) -> None:
        asyncio.get_running_loop().call_later(self._rng.uniform(0, seconds), self._kill, seat, moment)

    def _kill(self, seat: int, moment: str) -> None:
        if self._left and self._servers.running[seat].exit_code is None:
            self._servers.kill(seat)
            self._left -= 1
            self.kills[moment] += 1


class Haunted:
    """Pass everything on to the router, and report it to the killer."""

    def __init__(self, router: Router, killer: Ghost) -> None:
        self._router, self._killer = router, killer
        self.pause, self.resume = router.pause, router.resume

    @property
    def loaded_version(self) -> int:
        return self._router.loaded_version

    @property
    def busy_seconds(self) -> float:
        return self._router.busy_seconds

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Increment]:
        async for increment in self._router.generate(request):
            self._killer.spoke()
            yield increment

    async def update_weights(self, update: WeightUpdate) -> SwapReport:
        self._killer.swapping()
        return await self._router.update_weights(update)


class PublishingTrainer(NullTrainer):
    """Publish the old weights as even versions and the new ones as odd, and keep as many as a real publisher."""

    def __init__(self, directory: Path, old: Weights, new: Weights, kept: int) -> None:
        super().__init__(step_seconds=0.05)
        self._directory, self._models, self._kept = directory, (old.path, new.path), kept

    async def step(self, batch: Batch) -> StepResult:
        result = await super().step(batch)
        shutil.copytree(self._models[result.version % 2], self._directory / f"v{result.version}")
        shutil.rmtree(self._directory / f"v{result.version - self._kept}", ignore_errors=True)
        return result

    async def weights(self, version: int) -> WeightUpdate:
        return WeightUpdate(version, str(self._directory / f"v{version}"))


class LongProblems(NullCodec):
    """Prompts of a few tokens, no stop token: every episode takes its whole budget."""

    def encode_problem(self, problem: Problem) -> tuple[int, ...]:
        assert isinstance(problem.prompt, str)
        return tuple(map(int, problem.prompt))


def check_record(trajectory: Trajectory, models: tuple[Weights, Weights]) -> None:
    """Check that every token has the logprob that the weights of its version give it in this context."""
    cut = trajectory.prompt_length
    ids = tuple(trajectory.token_ids.tolist())
    even, odd = (model.logprobs(ids[:cut], ids[cut:]) for model in models)
    expected = np.where(trajectory.policy_versions[cut:] % 2, odd, even)
    np.testing.assert_allclose(trajectory.behavior_logprobs[cut:], expected, rtol=0, atol=2e-4)


class Run:
    """Run a controller over servers that a killer kills."""

    def __init__(self, directory: Path, old: Weights, new: Weights, mode: str, limits: Deadlines = LIMITS) -> None:
        self.steps, self.mode, self.models = 8, mode, (old, new)
        self.staleness, self.limits = 2, limits
        lag = 1 if mode == "lag" else None
        self.rollout = Rollout(
            problems_per_step=3, group_size=2, staleness=None if lag else 2, lag=lag, max_new_tokens=150
        )
        directory.mkdir()
        self.trainer = PublishingTrainer(directory, old, new, kept=4)

    async def over(self, servers: AbstractAsyncContextManager[Router], killer: Ghost) -> None:
        async with servers as router:
            engine = Haunted(router, killer)
            episodes = Episodes(engine, LongProblems(), NullRewards(), single_turn, self.rollout, 0, max_length=512)
            problems = ProblemOrder([Problem(f"{i:04d}") for i in range(60)], seed=0)
            lags = np.minimum(np.arange(self.steps)[:, None], np.ones((1, 3), int))
            self.controller = Controller(
                Segment(
                    rollout=self.rollout,
                    deadlines=self.limits,
                    steps=self.steps,
                    until=self.steps,
                    engine=engine,
                    trainer=self.trainer,
                    admission=LagSchedule(lags) if self.mode == "lag" else StalenessGate(3, self.staleness),
                    problems=problems,
                    groups=episodes,
                    gate_meter=episodes.gate_meter,
                    keep=keep_all,
                    lease=NoLease(),
                    observer=NullObserver(),
                    checkpoints=NullCheckpoints(0, self.steps),
                )
            )
            await self.controller.run()
            self.restarts = router.restarts

    def check(self) -> None:
        audit = self.controller.ledger
        groups = [group for batch in self.trainer.batches for group in batch.groups]
        assert (audit.admitted, audit.trained, audit.lost) == (3 * self.steps, 3 * self.steps, Counter())
        assert sorted(group.group_id for group in groups) == list(range(3 * self.steps))
        order = ProblemOrder([Problem(f"{i:04d}") for i in range(60)], seed=0)
        assert Counter(g.problem.id for g in groups) == Counter(next(order).id for _ in range(3 * self.steps))
        for batch in self.trainer.batches:
            for group in batch.groups:
                for trajectory in group.trajectories:
                    assert trajectory.loss_mask.sum() == 150
                    versions = trajectory.policy_versions[trajectory.loss_mask].tolist()
                    assert versions == sorted(versions)
                    ages = {batch.version - version for version in versions}
                    assert ages <= set(range(self.staleness + 1))
                    assert self.mode != "lag" or ages == {min(1, batch.version)}
                    check_record(trajectory, self.models)


NUM_KILLS = 4


@pytest.mark.parametrize("mode", ["two", "lag"])
def test_kill_9_of_engine_servers_again_and_again_changes_nothing_but_time(
    mode: str, old: Weights, new: Weights, tmp_path: Path
) -> None:
    run = Run(tmp_path / "published", old, new, mode)
    servers = Servers(old.path, count=2)
    killer = Killer(servers, random.Random(mode), NUM_KILLS)
    within(lambda: run.over(servers.open(), killer))
    run.check()
    assert killer.kills.total() == NUM_KILLS
    assert run.restarts > 0
