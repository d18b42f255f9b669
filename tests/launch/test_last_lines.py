"""The last lines of a process, which a message about its end shows."""

import asyncio
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from arl.launch import last_lines
from arl.launch.base import Command
from arl.launch.last_lines import SHOWN_BYTES, SHOWN_LINES, LastLines
from arl.launch.process import start_process

PIECES = st.lists(st.text("ab\n", max_size=20).map(str.encode), max_size=40)


@given(PIECES)
def test_however_output_is_cut_into_pieces_its_lines_are_whole_and_the_last_are_shown(pieces: list[bytes]) -> None:
    lines = LastLines()
    completed = [line for piece in pieces for line in lines.add(piece)]
    *whole, unfinished = b"".join(pieces).decode().split("\n")
    assert completed == whole
    shown = [*whole, unfinished] if unfinished else whole
    assert lines.text == "\n".join(f"    {line}" for line in shown[-SHOWN_LINES:])


def test_output_without_line_ends_takes_bounded_memory_and_is_shown_in_part() -> None:
    lines = LastLines()
    for _ in range(64):
        assert lines.add(b"x" * 65536) == []
    assert len(lines._unfinished) == last_lines.LONGEST_LINE
    assert lines.text == f"    {'x' * SHOWN_BYTES}"
    assert len(lines.add(b"\n")[0]) == last_lines.LONGEST_LINE


def test_the_end_of_a_process_shows_nothing_that_an_earlier_one_has_written_into_the_same_log(tmp_path: Path) -> None:
    log = tmp_path / "engine-0.log"
    log.write_text("what the one before it has said\n")

    async def run() -> str:
        process = await start_process("engine-0", Command(("sh", "-c", "echo only this; exit 3"), {}), log, None)
        return str(await process.died())

    assert asyncio.run(run()).endswith(f"exited with code 3.\nThe end of {log}:\n    only this")
    assert log.read_text() == "what the one before it has said\nonly this\n"
