"""Send damaged frames over the socket pair of the evaluator, and damaged lines as launchers read them."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
from arl.launch.slurm.memory_reports import MemoryReports, memory_report

from arl.config.cluster_section import Cluster
from arl.errors import ProcessDied, RunError
from arl.launch.frames import frame
from arl.launch.node_probe import MARK, NodeReport
from arl.launch.node_reports import open_probe
from arl.run.evaluation.during import NotMeasured
from arl.run.evaluation.evaluator_link import EvaluatorLink
from arl.run.evaluation.evaluator_messages import MeasureOutcome
from arl.types import Accuracy
from tests.fuzz.damage import damage_bytes, damage_value
from tests.fuzz.strangers import Background, as_json, as_msgpack, damaged
from tests.fuzz.trials import Draw, Edge, Trial


class Gone:
    """Stand for the evaluator process, which has ended when its connection has."""

    def __str__(self) -> str:
        return "evaluator (pid 17)"

    async def died(self) -> ProcessDied:
        """Return the error that names it."""
        return ProcessDied(f"{self} exited with code 1")


@contextlib.contextmanager
def outcomes(folder: Path) -> Iterator[Draw]:
    """Read outcomes of an evaluator that has gone wrong."""
    loop = Background()

    def draw(random: Random) -> Trial:
        good = frame(random.choice((MeasureOutcome(_ACCURACIES), MeasureOutcome(error="why", is_of_engine=True))))
        if random.random() < 0.5:
            body = as_msgpack(damage_value(random, msgspec.msgpack.decode(good[4:])))
            pieces = [len(body).to_bytes(4, "big"), body]
        else:
            pieces = damaged(random, good)
        return Trial(repr(b"".join(pieces)[:200]), lambda: loop.call(_measure(pieces)))

    yield draw
    loop.close()


async def _measure(pieces: list[bytes]) -> None:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    try:
        for piece in pieces:
            theirs.sendall(piece)
        theirs.shutdown(socket.SHUT_WR)
        link = EvaluatorLink(Gone(), reader, writer)  # type: ignore[arg-type]
        with contextlib.suppress(NotMeasured):
            await link.measure(3, Path("model"))
    finally:
        writer.close()
        theirs.close()


@contextlib.contextmanager
def lines(folder: Path) -> Iterator[Draw]:
    """Read what runners and probes print on nodes."""
    with open_probe(Cluster(interface="lo"), folder / "run") as probe:
        (probe.directory / "n1").touch()
        report = NodeReport(
            name="n1",
            address="10.0.0.7",
            cores=4,
            versions={"arl": "1", "python": "3"},
            clock=probe.began,
            nonce=probe.nonce,
            interfaces={"eth0": "10.0.0.7"},
        )

        def draw(random: Random) -> Trial:
            if random.random() < 0.3:
                stream = memory_report(random.getrandbits(40)) * 3 + b"a line\n"
                pieces = damaged(random, stream.replace(b"memory 1", b"memory 1" + b"1" * random.choice((0, 5000))))
                return Trial(repr(b"".join(pieces)[:200]), lambda: _read_memory(pieces))
            good = msgspec.json.encode(report)
            value = as_json(damage_value(random, msgspec.json.decode(good)))
            data = damage_bytes(random, good) if random.random() < 0.5 else value
            printed = f"loads\n{MARK}{data.decode(errors='replace')}\n"
            both = {"n1": MARK + good.decode(), "n2": printed}
            return Trial(printed[:300], lambda: _read_nodes(both))

        def _read_nodes(output: dict[str, str]) -> None:
            probe.nodes(list(output), output)

        yield draw


def _read_memory(pieces: list[bytes]) -> None:
    reports = MemoryReports()
    for piece in pieces:
        reports.take(piece)
    reports.take(b"")
    if reports.newest is not None and reports.newest < 0:
        raise AssertionError("memory is not negative")


_ACCURACIES = (Accuracy(0.5, 10, 3),)
FRAMES = Edge(outcomes, trials=150, refuses=RunError)
LINES = Edge(lines, trials=150)
