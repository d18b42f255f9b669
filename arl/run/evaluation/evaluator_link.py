"""Start the evaluator process and talk to it, on the controller's side.

MeasureRequest ─► arl.run.evaluation.evaluator ─► MeasureOutcome
"""

import asyncio
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from arl.errors import EngineError, RunError
from arl.launch.base import Command
from arl.launch.child import NICENESS
from arl.launch.frames import FrameError, frame, read_message
from arl.launch.process import LocalProcess, start_process
from arl.run.evaluation.during import NotMeasured
from arl.run.evaluation.evaluator_messages import (
    LONGEST_MESSAGE,
    NOTE,
    EvaluatorAssignment,
    MeasureOutcome,
    MeasureRequest,
)
from arl.types import Accuracy

MODULE = "arl.run.evaluation.evaluator"


class EvaluatorLink:
    """Hold the evaluator process and the connection to it."""

    def __init__(self, process: LocalProcess, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(
        cls, assignment: EvaluatorAssignment, secrets: Mapping[str, str], note: Callable[[str], None]
    ) -> Self:
        """Start an evaluator beside this process, with the priority of its server, and tell it what it measures.

        Args:
            secrets: variables with the run's key.
            note: shows a line on the console.
        """

        def on_line(line: str) -> None:
            if line.startswith(NOTE):
                note(line.removeprefix(NOTE))

        niceness = {NICENESS: str(assignment.resources.niceness)}
        command = Command((sys.executable, "-m", MODULE), niceness, secrets)
        log = Path(assignment.logs) / "evaluator.log"
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_connection(sock=ours)
            process = await start_process("evaluator", command, log, on_line, stdin=theirs.fileno())
        writer.write(frame(assignment))
        return cls(process, reader, writer)

    async def measure(self, version: int, model: Path) -> Sequence[Accuracy]:
        """See Measure. This wait has no deadline of its own; see deadlines.evaluation."""
        self._writer.write(frame(MeasureRequest(version, str(model))))
        try:
            outcome = await read_message(self._reader, MeasureOutcome, LONGEST_MESSAGE)
        except FrameError as error:
            raise RunError(f"{self._process} sent no outcome of version {version}: {error}") from None
        if outcome is None:
            raise await self._process.died()
        if outcome.is_of_engine:
            raise EngineError(outcome.error)
        if outcome.error:
            raise NotMeasured(outcome.error)
        return outcome.accuracies

    async def stop(self, seconds: float) -> None:
        """End the process with everything that it has started; kill it after `seconds`."""
        await self._process.stop(seconds)
        self._writer.close()
