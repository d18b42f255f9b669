"""Run the evaluator process: it answers and scores the problems of suites, beside a run, at a priority of its own.

    python -m arl.run.evaluation.evaluator          the socket to the controller is file descriptor 0

    controller ── version ──► evaluator ──► episodes ──► the evaluation's engine server
               ◄─ accuracies ─    │
                                  └──► reward workers, which it starts

The controller only waits for accuracies. So thousands of episodes of an evaluation take nothing from its event loop, on
which all episodes of the training run.
"""

import asyncio
import contextlib
import os
import signal
import socket
from pathlib import Path

from arl import clock
from arl.config.recipe import Recipe
from arl.data.tokenizer import load_codec
from arl.engine.backend import ServerSpec, find_backend
from arl.engine.base import ReplicaEngine
from arl.launch.child import RUN_KEY
from arl.launch.frames import frame, read_message, standard_input_socket
from arl.reward.pool import RewardPool
from arl.run.evaluation.evaluator_messages import (
    LONGEST_ASSIGNMENT,
    LONGEST_MESSAGE,
    NOTE,
    EvaluatorAssignment,
    MeasureOutcome,
    MeasureRequest,
)
from arl.run.evaluation.measure import measure_suites
from arl.run.gc_pacing import rare_collections
from arl.run.rewards import open_rewards, reward_name
from arl.types import WeightUpdate


class Evaluator:
    """Measure versions on one server.

    Args:
        engine: serves the version that the assignment names.
        rewards: call the functions of all suites.
    """

    def __init__(self, assignment: EvaluatorAssignment, engine: ReplicaEngine, rewards: RewardPool) -> None:
        self._suites = [fields.suite() for fields in assignment.suites]
        self._codec = load_codec(assignment.tokenizer)
        self._context = assignment.context
        self._patience = Recipe.model_validate(assignment.recipe).deadlines.evaluation
        self._engine = engine
        self._rewards = rewards
        self._loaded = assignment.versions.version

    async def measure(self, request: MeasureRequest) -> MeasureOutcome:
        """Measure one version, whatever happens: an error is an outcome, too."""
        version = request.version
        try:
            if version != self._loaded:
                await self._engine.update_weights(WeightUpdate(version, request.model))
                self._loaded = version
            accuracies = await measure_suites(
                self._suites,
                version,
                self._engine,
                self._codec,
                self._rewards,
                self._context,
                self._patience,
            )
        except Exception as error:
            return MeasureOutcome.failed(error)
        return MeasureOutcome(tuple(accuracies))


async def serve(connection: socket.socket) -> None:
    """Measure version after version.

    Consumes requests and sends outcomes. Waits for the next request; unblocked by it, or by the end of the connection,
    which ends the loop. SIGTERM cancels it, so that reward workers end first.
    """
    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    requests, outcomes = await asyncio.open_connection(sock=connection)
    key = os.environ.pop(RUN_KEY)  # reward workers must not inherit it
    assignment = await read_message(requests, EvaluatorAssignment, LONGEST_ASSIGNMENT)
    if assignment is None:
        return
    recipe = Recipe.model_validate(assignment.recipe)
    functions = sorted({fields.suite().reward for fields in assignment.suites} - {reward_name(recipe)})
    spec = ServerSpec(
        recipe=recipe,
        versions=assignment.versions,
        resources=assignment.resources,
        seed=recipe.seed,
        host=assignment.host,
        certificate=assignment.certificate,
    )
    backend = find_backend(recipe.engine.kind)
    async with (
        backend.connect(assignment.url, spec, key, None) as engine,
        open_rewards(recipe, Path(assignment.logs), _note, functions) as rewards,
    ):
        evaluator = Evaluator(assignment, engine, rewards)
        while (request := await read_message(requests, MeasureRequest, LONGEST_MESSAGE)) is not None:
            outcome = await evaluator.measure(request)
            outcomes.write(frame(outcome))
            await outcomes.drain()


def _note(text: str) -> None:
    print(f"{NOTE}{text}", flush=True)


def main() -> None:
    """Serve the controller that is connected to standard input."""
    connection = standard_input_socket()
    with rare_collections(), contextlib.suppress(asyncio.CancelledError):  # by SIGTERM
        clock.run(lambda: serve(connection))


if __name__ == "__main__":
    main()
