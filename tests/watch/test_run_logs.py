"""The logs of a run as `arl logs` shows them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.errors import InputError
from arl.watch.run_logs import find_logs, new_lines, show_logs
from tests.watch.statuses import a_run, a_status


def with_logs(directory: Path) -> Path:
    """A run that has ended, with logs of two engines, a rank and an evaluation."""
    run = a_run(directory, a_status(end="finished"))
    (run / "logs" / "evaluation").mkdir(parents=True)
    texts = {
        "engine-0": "ready\nserves\n",
        "engine-1": "ready\ndies",
        "trainer-0": "step 1\nstep 2\nstep 3\n",
        "evaluation/engine-0": "measures\n",
    }
    for role, text in texts.items():
        (run / "logs" / f"{role}.log").write_text(text)
    return run


def logs(run: Path, role: str | None = None, count: int = 10, follow: bool = False) -> list[str]:
    """Return the lines that `arl logs` prints."""
    shown: list[str] = []
    show_logs(run, role, count, shown.append, follow)
    return shown


def test_the_ends_of_all_logs_are_shown_with_their_roles_also_a_line_without_an_end(tmp_path: Path) -> None:
    run = with_logs(tmp_path)
    ends = ["engine-0 | serves", "engine-1 | dies", "evaluation/engine-0 | measures", "trainer-0 | step 3"]
    assert logs(run, count=1) == ends
    of_engines = ["engine-0 | ready", "engine-0 | serves", "engine-1 | ready", "engine-1 | dies"]
    assert logs(run, "engine", follow=True) == of_engines


def test_an_unknown_role_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    run = with_logs(tmp_path)
    with pytest.raises(InputError, match=r"ROLE .engine-7.: has no log .* engine-0, engine-1, evaluation/engine-0, tr"):
        find_logs(run, "engine-7")


@given(st.lists(st.binary(max_size=20), max_size=8))
def test_however_a_log_grows_each_line_is_shown_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]
) -> None:
    file = tmp_path_factory.mktemp("log") / "a.log"
    file.touch()
    shown = []
    read = 0
    for piece in pieces:
        with file.open("ab") as grown:
            grown.write(piece)
        lines, read = new_lines(file, read)
        shown += lines
    shown += new_lines(file, read, is_last=True)[0]
    whole = b"".join(pieces).split(b"\n")
    expected = whole if whole[-1] else whole[:-1]
    assert shown == [line.decode(errors="replace") for line in expected]
