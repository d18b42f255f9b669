"""Name the edges that are tried."""

from tests.fuzz import checkpoints_edge
from tests.fuzz.trials import Edge

EDGES: dict[str, Edge] = {
    "checkpoints": checkpoints_edge.EDGE,
}
