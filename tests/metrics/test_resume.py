"""A recorder that is cut, killed and restored goes on as if nothing had come after the cut."""

import asyncio
import json
import shutil
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from arl import clock
from arl.metrics.recorder import Meters, Recorder, RecorderState
from arl.types import FAILED, StepResult, StepWaits, SwapReport
from tests.metrics.test_recorder import BATCH, FAILED_GROUP, silent

AFTER_STEP = 0.2  # seconds


class Process:
    """Feed a recorder, each event at a time of its own."""

    def __init__(self, directory: Path, restored: RecorderState | None) -> None:
        self._meters = Meters(admitted=100, open_tokens=3)
        self.recorder = Recorder(directory, True, [], silent(), restored=restored)
        self.recorder.watch(lambda: self._meters)

    def _count(self, busy: float, tokens: int, waited: float, held_back: float) -> None:
        meters = self._meters
        self._meters = msgspec.structs.replace(
            meters,
            busy_seconds=meters.busy_seconds + busy,
            epochs=meters.epochs + tokens / 100,
            reward_wait_seconds=meters.reward_wait_seconds + waited,
            graded_groups=meters.graded_groups + 1,
            gate_seconds=meters.gate_seconds + held_back,
        )

    async def step(self, version: int) -> None:
        await asyncio.sleep(0.7)
        self._count(busy=0.3, tokens=10, waited=0.5, held_back=0.5)
        self.recorder.group_finished(BATCH.groups[0])
        self.recorder.swapped(SwapReport(version, 0.125, 0.25, recomputed_tokens=50))
        self.recorder.group_lost(FAILED_GROUP, FAILED, ValueError("no"))
        batch = msgspec.structs.replace(BATCH, version=version)
        self.recorder.step_finished(batch, StepResult(version + 1, {"loss": 0.1 * version}), StepWaits(0.1))
        await asyncio.sleep(AFTER_STEP)
        self._count(busy=0.1, tokens=3, waited=0.25, held_back=0.25)
        self.recorder.swapped(SwapReport(version + 1, 0.125, 0.25, recomputed_tokens=7))


def until_cut(directory: Path, steps: int) -> tuple[Recorder, RecorderState]:
    async def main() -> tuple[Recorder, RecorderState]:
        process = Process(directory, None)
        for version in range(4, 4 + steps):
            await process.step(version)
        return process.recorder, process.recorder.snapshot()

    return clock.run(main, virtual=True)


def go_on(directory: Path, restored: RecorderState, start_up: float = 0.0) -> Recorder:
    """Continue for two steps, on a clock that goes on where the other was cut."""

    async def main() -> Recorder:
        await asyncio.sleep(start_up)
        process = Process(directory, restored.after_pause(start_up))
        with process.recorder:
            for version in (6, 7):
                await process.step(version)
        return process.recorder

    return clock.run(main, virtual=True, start=restored.last_step + AFTER_STEP)


def contents(directory: Path) -> dict[str, bytes]:
    return {str(f.relative_to(directory)): f.read_bytes() for f in directory.rglob("*") if f.is_file()}


@pytest.mark.parametrize("steps", [0, 2])
def test_what_a_killed_process_did_after_the_cut_leaves_no_trace(tmp_path: Path, steps: int) -> None:
    killed, rebuilt = tmp_path / "killed", tmp_path / "rebuilt"
    killed.mkdir()

    async def main() -> tuple[Recorder, RecorderState]:
        process = Process(killed, None)
        for version in range(4, 4 + steps):
            await process.step(version)
        state = process.recorder.snapshot()
        shutil.copytree(killed, rebuilt)
        await process.step(8)
        process.recorder.snapshot()  # of a checkpoint that was never complete
        await process.step(9)
        return process.recorder, state

    alive, state = clock.run(main, virtual=True)
    assert contents(killed) != contents(rebuilt)
    one, two = go_on(killed, state), go_on(rebuilt, state)
    assert contents(killed) == contents(rebuilt)
    written = [json.loads(line) for line in (killed / "metrics.jsonl").read_text().splitlines()]
    assert list(one.read_records()) == list(two.read_records()) == written
    assert (one.state.token_ages, one.state.num_spanning) == (two.state.token_ages, two.state.num_spanning)
    assert pq.read_table(killed / "trajectories").num_rows == 6 * (steps + 2)
    assert len(json.loads((killed / "trace.json").read_text())) == 4 * (steps + 2)
    assert [r["step"] for r in one.read_records()] == [5, 6, 7, 8][2 - steps :]
    assert alive.records.newest[-1]["step"] == 10  # and nothing has closed its files


@pytest.mark.parametrize("start_up", [0.0, 40.0])
def test_a_resumed_run_counts_on_without_its_start_up(tmp_path: Path, start_up: float) -> None:
    _, state = until_cut(tmp_path, 2)
    records = list(go_on(tmp_path, state, start_up).read_records())
    assert [r["groups/failed"] for r in records] == [1, 2, 3, 4]
    assert {r["reward/generated_mean"] for r in records} == {(1.0 + 0.0 + 0.5) / 3}
    assert [r["audit/groups_in_flight"] for r in records] == [97, 94, 91, 88]
    assert [r["time_s"] for r in records] == pytest.approx([0.7, 1.6, 2.5, 3.4])
    assert [r["tokens/generated"] for r in records] == [10 + 3, 10, 10, 10]  # running episodes had 3 from the start
    assert [r["audit/tokens_generated"] for r in records] == [13, 23, 33, 43]
    assert [r["sync/swaps"] for r in records] == [1, 2, 2, 2]
    assert [r["sync/paused_s"] for r in records] == [0.125, 0.25, 0.25, 0.25]
    assert [r["wait/gate_s"] for r in records] == [0.5, 0.75, 0.75, 0.75]
    assert [r["time/step_s"] for r in records] == pytest.approx([0.7, 0.9, 0.9, 0.9])
    assert [r["tokens/trained_total"] for r in records] == [8, 16, 24, 32]
    assert [r["reward/wait_seconds"] for r in records] == [0.5, 0.375, 0.375, 0.375]
    assert [r["idle/engine"] for r in records] == pytest.approx([1 - 0.3 / 0.7] + 3 * [1 - 0.4 / 0.9])
