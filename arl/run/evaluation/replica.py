"""Measure checkpoints on an engine server that belongs to no router, by a process of its own.

first checkpoint ─► start a server with it, and an evaluator ─► evaluate
next checkpoint  ─► the same server loads it from its directory ─► evaluate
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path

from arl.config.recipe import Deadlines, Recipe
from arl.launch.base import Process, Resources
from arl.run.engines import EngineServers
from arl.run.evaluation.evaluator_link import EvaluatorLink
from arl.run.evaluation.evaluator_messages import EvaluatorAssignment, recipe_fields, suite_fields
from arl.run.preflight import Plan
from arl.types import Accuracy, StartingVersions

SIDE = "evaluation"  # begins the role of the server, and the names of its logs
PATIENCE = 10  # times as long as in training: the deadline of a reward at the lowest priority


@contextlib.asynccontextmanager
async def open_replica(
    recipe: Recipe,
    plan: Plan,
    servers: EngineServers,
    note: Callable[[str], None],
) -> AsyncIterator["EvaluationReplica"]:
    """Yield what measures checkpoints. Nothing is started before the first one; everything ends with the context.

    Args:
        servers: those of the run; this one is started as they are, with resources of its own.
        note: shows a line on the console.
    """
    replica = EvaluationReplica(recipe, plan, servers, note)
    try:
        yield replica
    finally:
        await replica.restart()


class EvaluationReplica:
    """Implement Measure; see `open_replica`."""

    def __init__(
        self,
        recipe: Recipe,
        plan: Plan,
        servers: EngineServers,
        note: Callable[[str], None],
    ) -> None:
        resources = plan.placement.evaluation
        assert resources is not None, "placed with eval.every"
        self._resources: Resources = resources
        self._recipe = recipe.model_copy(update={"deadlines": _patient(recipe.deadlines)})
        self._plan = plan
        self._tokenizer = servers.versions.model
        self._servers = replace(servers, recipe=self._recipe, side=SIDE)
        self._note = note
        self._server: Process | None = None
        self._evaluator: EvaluatorLink | None = None

    async def measure(self, version: int, model: Path) -> Sequence[Accuracy]:
        """See Measure."""
        if self._evaluator is None:
            self._evaluator = await self._start(version, model)
        return await self._evaluator.measure(version, model)

    @property
    def makes_way(self) -> bool:
        """See Measure."""
        return self._resources.niceness > 0

    async def hurry(self) -> None:
        """See Measure."""
        await self.restart()
        self._resources = replace(self._resources, niceness=0)

    async def restart(self) -> None:
        """See Measure. The server ends first, because its client waits long for one that hangs."""
        started = [process for process in (self._server, self._evaluator) if process is not None]
        self._evaluator = None
        self._server = None
        for process in started:
            await process.stop(self._recipe.deadlines.shutdown)

    async def _start(self, version: int, model: Path) -> EvaluatorLink:
        """Start a server with the weights of `model`, and an evaluator that is connected to it."""
        versions = StartingVersions(str(model), version)
        servers = replace(self._servers, versions=versions, resources=[self._resources])
        self._server = await servers.start(0)
        url = await self._server.ready(self._recipe.deadlines.evaluation)
        logs = servers.launcher.logs / SIDE
        logs.mkdir(exist_ok=True)
        assignment = EvaluatorAssignment(
            recipe=recipe_fields(self._recipe),
            suites=suite_fields(self._plan.measured),
            tokenizer=self._tokenizer,
            context=self._plan.context,
            url=url,
            certificate=servers.trust.certificate,
            versions=versions,
            resources=self._resources,
            host=servers.launcher.nodes[self._resources.node].address,
            logs=str(logs),
        )
        return await EvaluatorLink.start(assignment, servers.trust.secrets, self._note)


def _patient(deadlines: Deadlines) -> Deadlines:
    """Lengthen what bounds single waits: at the lowest priority they take long, and deadlines.evaluation bounds all."""
    patient = dict.fromkeys(("startup", "swap", "generate"), deadlines.evaluation)
    patient["reward"] = PATIENCE * deadlines.reward
    return deadlines.model_copy(update=patient)
