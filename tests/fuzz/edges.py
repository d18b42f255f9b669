"""Name the edges that are tried."""

from tests.fuzz import checkpoints_edge, model_files_edge
from tests.fuzz.channel_edge import CHANNEL, CHANNEL_WITH_KEY
from tests.fuzz.control_edge import CONTROL, CONTROL_STATE
from tests.fuzz.data_edge import DATA
from tests.fuzz.engine_answers_edge import ENGINE_ANSWERS
from tests.fuzz.frames_edge import FRAMES, LINES
from tests.fuzz.gate_edge import GATE
from tests.fuzz.http_edge import HTTP, HTTP_STRANGERS
from tests.fuzz.recipes_edge import RECIPE_EDGE, SETTINGS_EDGE, SWEEP_EDGE
from tests.fuzz.recordings_edge import RECORDINGS
from tests.fuzz.rewards_edge import REWARDS
from tests.fuzz.run_directories_edge import RUN_DIRECTORIES
from tests.fuzz.sweep_directories_edge import SWEEP_DIRECTORIES
from tests.fuzz.trials import Edge

EDGES: dict[str, Edge] = {
    "channel": CHANNEL,
    "channel-with-key": CHANNEL_WITH_KEY,
    "checkpoints": checkpoints_edge.EDGE,
    "control": CONTROL,
    "control-state": CONTROL_STATE,
    "data": DATA,
    "engine_answers": ENGINE_ANSWERS,
    "frames": FRAMES,
    "gate": GATE,
    "http": HTTP,
    "http_strangers": HTTP_STRANGERS,
    "lines": LINES,
    "model_files": model_files_edge.EDGE,
    "recipes": RECIPE_EDGE,
    "recordings": RECORDINGS,
    "rewards": REWARDS,
    "run_directories": RUN_DIRECTORIES,
    "settings": SETTINGS_EDGE,
    "sweep_directories": SWEEP_DIRECTORIES,
    "sweeps": SWEEP_EDGE,
}
