"""Name the edges that are tried."""

from tests.fuzz import checkpoints_edge, model_files_edge
from tests.fuzz.trials import Edge

EDGES: dict[str, Edge] = {
    "checkpoints": checkpoints_edge.EDGE,
    "model_files": model_files_edge.EDGE,
}
