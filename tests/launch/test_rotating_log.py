"""Logs in parts of bounded size."""

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.errors import DiskError
from arl.launch.base import Command
from arl.launch.last_lines import SHOWN_LINES
from arl.launch.process import start_process
from arl.launch.rotating_log import OLD_PARTS, PipedLog, RotatingLog, parts_of


@given(st.lists(st.binary(max_size=300), max_size=30), st.integers(1, 200))
def test_whatever_is_written_no_part_grows_longer_than_it_may_and_nothing_but_the_oldest_is_lost(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], part_bytes: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "a.log"
    with RotatingLog(path, part_bytes) as log:
        for piece in pieces:
            log.write(piece)
    longest_piece = max((len(piece) for piece in pieces), default=0)
    parts = parts_of(path)
    assert len(parts) <= 1 + OLD_PARTS
    assert all(part.stat().st_size <= max(part_bytes, longest_piece) for part in parts)
    kept = b"".join(part.read_bytes() for part in reversed(parts))
    assert b"".join(pieces).endswith(kept)
    assert len(parts) <= OLD_PARTS or len(kept) >= min(part_bytes, 1)


def test_a_part_ends_with_a_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    with RotatingLog(path, part_bytes=20) as log:
        log.write(b"first\nsecond\nthird, which is longer\n")
    newest, older = (part.read_bytes() for part in parts_of(path))
    assert older == b"first\nsecond\n"
    assert newest == b"third, which is longer\n"


@given(st.lists(st.integers(0, 1), max_size=40))
def test_two_writers_of_one_log_keep_its_parts_full(tmp_path_factory: pytest.TempPathFactory, turns: list[int]) -> None:
    path = tmp_path_factory.mktemp("log") / "a.log"
    with RotatingLog(path, part_bytes=100) as one, RotatingLog(path, part_bytes=100) as other:
        for turn in turns:
            (one, other)[turn].write(b"a line of twenty-four b\n")
    older = parts_of(path)[1:]
    assert all(part.stat().st_size == 96 for part in older)


def test_a_process_that_has_just_filled_its_log_still_has_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RotatingLog.__init__, "__defaults__", (100,))
    log = tmp_path / "noisy.log"

    async def run() -> str:
        command = Command(("sh", "-c", "for i in $(seq 100); do echo line $i; done; exit 3"), {})
        process = await start_process("noisy", command, log, None)
        return str(await process.died())

    told = asyncio.run(run())
    assert "exited with code 3" in told
    assert all(f"line {number}\n" in f"{told}\n" for number in range(100 - SHOWN_LINES + 1, 101))


def fail(error: Exception) -> None:
    raise error


def test_what_processes_write_into_a_pipe_is_in_the_log_when_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "reward.log"

    async def run() -> None:
        log = await PipedLog.open(path, on_failure=fail)
        os.write(log.writing_end, b"a line\n" * 1000)
        await log.close()

    asyncio.run(run())
    assert path.read_bytes() == b"a line\n" * 1000


def test_a_pipe_that_somebody_holds_open_does_not_keep_a_log_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arl.launch.rotating_log.OUTPUT_SECONDS", 0.05)

    async def run() -> int:
        log = await PipedLog.open(tmp_path / "reward.log", on_failure=fail)
        held = os.dup(log.writing_end)
        await log.close()
        await asyncio.sleep(0)  # the pipe is closed in the next round of the loop
        return held

    held = asyncio.run(run())
    with pytest.raises(BrokenPipeError):
        os.write(held, b"too late")
    os.close(held)


def test_a_log_on_a_full_disk_is_reported_with_its_remedy() -> None:
    async def run() -> Exception:
        failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        log = await PipedLog.open(Path("/dev/full"), failed.set_result)
        os.write(log.writing_end, b"a line\n")
        error = await failed
        await log.close()
        return error

    error = asyncio.run(run())
    assert isinstance(error, DiskError)
    assert "make room" in str(error)
