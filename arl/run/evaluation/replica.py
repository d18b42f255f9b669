"""Measure checkpoints on an engine server that belongs to no router.

first checkpoint ─► start a server with it, and reward workers ─► evaluate
next checkpoint  ─► the same server loads it from its directory ─► evaluate
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from arl.config.recipe import Deadlines, Recipe
from arl.data.tokenizer import HuggingFaceCodec
from arl.engine.base import ReplicaEngine
from arl.errors import RunError
from arl.launch.base import Process, Resources
from arl.launch.child import NICENESS
from arl.reward.pool import RewardPool
from arl.run.engines import EngineServers
from arl.run.evaluation.measure import measure_suites
from arl.run.preflight import Plan
from arl.run.rewards import open_rewards, reward_name
from arl.types import Accuracy, StartingVersions, WeightUpdate

SIDE = "evaluation"  # begins the role of the server, and the names of its logs
PATIENCE = 10  # times as long as in training: the deadline of a reward at the lowest priority


@contextlib.asynccontextmanager
async def open_replica(
    recipe: Recipe, plan: Plan, servers: EngineServers, codec: HuggingFaceCodec, note: Callable[[str], None]
) -> AsyncIterator["EvaluationReplica"]:
    """Yield what measures checkpoints. Nothing is started before the first one; everything ends with the context.

    Args:
        servers: those of the run; this one is started as they are, with resources of its own.
    """
    replica = EvaluationReplica(recipe, plan, servers, codec, note)
    try:
        yield replica
    finally:
        await replica.restart()


class EvaluationReplica:
    """Implements Measure; see `open_replica`."""

    def __init__(
        self, recipe: Recipe, plan: Plan, servers: EngineServers, codec: HuggingFaceCodec, note: Callable[[str], None]
    ) -> None:
        resources = plan.placement.evaluation
        assert resources is not None, "placed with eval.every"
        self._resources: Resources = resources
        self._recipe = recipe.model_copy(update={"deadlines": _patient(recipe.deadlines)})
        self._plan = plan
        self._servers = replace(servers, recipe=self._recipe, side=SIDE)
        self._codec = codec
        self._note = note
        self._opened = AsyncExitStack()
        self._process: Process | None = None
        self._engine: ReplicaEngine | None = None
        self._rewards: RewardPool | None = None

    async def measure(self, version: int, model: Path) -> Sequence[Accuracy]:
        """See Measure."""
        if self._engine is None:
            self._engine = await self._start(version, model)
        else:
            await self._engine.update_weights(WeightUpdate(version, str(model)))
        if self._rewards is None:
            self._rewards = await self._opened.enter_async_context(self._pool())
        return await measure_suites(
            self._plan.measured,
            version,
            self._engine,
            self._codec,
            self._rewards,
            self._plan.context,
            patience=self._recipe.deadlines.evaluation,
        )

    @property
    def makes_way(self) -> bool:
        """See Measure."""
        return self._resources.niceness > 0

    async def hurry(self) -> None:
        """See Measure."""
        await self.restart()
        self._resources = replace(self._resources, niceness=0)

    async def restart(self) -> None:
        """See Measure. The process ends first, because a client waits long for one that hangs."""
        opened = self._opened
        process = self._process
        self._opened = AsyncExitStack()
        self._engine = None
        self._rewards = None
        self._process = None
        try:
            if process is not None:
                await process.stop(self._recipe.deadlines.shutdown)
        finally:
            with contextlib.suppress(RunError):  # the client of a server that is gone
                await opened.aclose()

    def _pool(self) -> RewardPool:
        """Make reward workers for the functions of all suites, with the priority of the engine."""
        reward = self._recipe.reward
        environment = {**reward.environment, NICENESS: str(self._resources.niceness)}
        niced = self._recipe.model_copy(update={"reward": reward.model_copy(update={"environment": environment})})
        logs = self._servers.launcher.logs / SIDE
        logs.mkdir(exist_ok=True)
        others = {suite.reward for suite in self._plan.measured} - {reward_name(niced)}
        return open_rewards(niced, logs, self._note, sorted(others))

    async def _start(self, version: int, model: Path) -> ReplicaEngine:
        """Start a server with the weights of `model`, and connect to it."""
        versions = StartingVersions(str(model), version)
        servers = replace(self._servers, versions=versions, resources=[self._resources])
        self._process = await servers.start(0)
        url = await self._process.ready(self._recipe.deadlines.evaluation)
        return await self._opened.enter_async_context(servers.connect(url))


def _patient(deadlines: Deadlines) -> Deadlines:
    """Lengthen what bounds single waits: at the lowest priority they take long, and deadlines.evaluation bounds all."""
    patient = dict.fromkeys(("startup", "swap", "generate"), deadlines.evaluation)
    patient["reward"] = PATIENCE * deadlines.reward
    return deadlines.model_copy(update=patient)
