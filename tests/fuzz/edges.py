"""Name the edges that are tried."""

from tests.fuzz.trials import Edge

EDGES: dict[str, Edge] = {}
