"""Name the edges that are tried."""

from tests.fuzz.recipes_edge import RECIPE_EDGE, SETTINGS_EDGE, SWEEP_EDGE
from tests.fuzz.trials import Edge

EDGES: dict[str, Edge] = {
    "recipes": RECIPE_EDGE,
    "settings": SETTINGS_EDGE,
    "sweeps": SWEEP_EDGE,
}
