"""Name the edges that are tried."""

from tests.fuzz.data_edge import DATA
from tests.fuzz.rewards_edge import REWARDS
from tests.fuzz.trials import Edge

EDGES: dict[str, Edge] = {
    "data": DATA,
    "rewards": REWARDS,
}
