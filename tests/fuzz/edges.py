"""Name the edges that are tried."""

from tests.fuzz.recordings_edge import RECORDINGS
from tests.fuzz.run_directories_edge import RUN_DIRECTORIES
from tests.fuzz.trials import Edge

EDGES: dict[str, Edge] = {
    "recordings": RECORDINGS,
    "run_directories": RUN_DIRECTORIES,
}
