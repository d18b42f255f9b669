"""Reports of memory travel among the output of a step: the log gets the output, the controller the reports."""

from hypothesis import given
from hypothesis import strategies as st

from arl.launch.slurm.memory_reports import MARK, MemoryReports, memory_report

OUTPUT = st.sampled_from([b"loads", b"50%\r", b"\n", MARK, MARK + b"memory", MARK + b"memory \n", b"memory x\n"])


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    """Cut a stream into pieces, none of which is empty."""
    ends = sorted({place % (len(stream) + 1) for place in places} | {len(stream)})
    begins = [0, *ends]
    return [stream[begin:end] for begin, end in zip(begins, ends, strict=False) if begin < end]


@given(st.lists(OUTPUT | st.integers(0, 2**50), max_size=12), st.lists(st.integers(0, 300), max_size=12))
def test_however_the_output_is_cut_it_is_kept_without_the_reports_of_which_the_newest_is_known(
    parts: list[bytes | int], places: list[int]
) -> None:
    stream = b"".join(memory_report(part) if isinstance(part, int) else part for part in parts)
    reports = MemoryReports()
    kept = b"".join(reports.take(piece) for piece in cut(stream, places)) + reports.take(b"")
    numbers = [part for part in parts if isinstance(part, int)]
    assert kept == b"".join(part for part in parts if isinstance(part, bytes))
    assert reports.newest == (numbers[-1] if numbers else None)


def test_output_is_not_held_back_for_longer_than_a_report_can_be() -> None:
    reports = MemoryReports()
    assert reports.take(b"a line\nanother") == b"a line\nanother"
    assert reports.take(MARK + b"memory 1") == b""
    assert reports.take(b"x" * 40) == MARK + b"memory 1" + b"x" * 40
