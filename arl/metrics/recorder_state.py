"""Hold what the recorder knows at one instant: with it and the files of the run, recording goes on from there."""

from msgspec import Struct

from arl.metrics.audit import Selection
from arl.metrics.ended_groups import EndedGroups
from arl.metrics.rates import RatesState
from arl.metrics.versions_behind import BehindState
from arl.types import Count, SwapReport


class RecorderState(Struct, frozen=True):
    """Keep the recorder's counters. Times are clock seconds; the clock of a resumed run goes on from the checkpoint."""

    start: float  # when training began
    rates: RatesState
    metrics_bytes: int = 0  # size of metrics.jsonl
    trace_bytes: int = 0  # size of trace.json
    num_files: int = 0  # trajectory files
    last_swap: SwapReport = SwapReport(0, 0.0, 0.0)
    num_swaps: int = 0  # since the last step, like the next three
    paused: float = 0.0  # seconds of these swaps
    recomputed: int = 0  # tokens, because of these swaps
    behind: BehindState = BehindState()
    ended: EndedGroups = EndedGroups()
    selection: Selection = Selection()
    token_ages: dict[Count, Count] = {}  # age -> trained tokens
    num_spanning: int = 0
