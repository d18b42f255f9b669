"""Hold what the recorder knows at one instant: with it and the files of the run, recording goes on from there."""

from msgspec import Struct

from arl.metrics.audit import Selection
from arl.types import SwapReport


class RecorderState(Struct, frozen=True):
    """Keep the recorder's counters. Times are clock seconds; the clock of a resumed run goes on from the checkpoint."""

    start: float  # when training began
    last_step: float  # end of the last step
    busy_seconds: float = 0.0  # of the engines, since the last step
    tokens_generated: int = 0  # since the last step
    metrics_bytes: int = 0  # size of metrics.jsonl
    trace_bytes: int = 0  # size of trace.json, its array still open
    num_files: int = 0  # trajectory files
    last_swap: SwapReport = SwapReport(0, 0.0, 0.0)
    num_scored: int = 0  # scored episodes that ended since the last step
    sum_of_rewards: float = 0.0  # of these episodes
    selection: Selection = Selection()
    token_ages: dict[int, int] = {}  # age -> trained tokens
    num_spanning: int = 0
    restarts: int = 0  # of engines
