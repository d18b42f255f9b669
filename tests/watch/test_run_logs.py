"""The logs of a run as `arl logs` shows them."""

import itertools
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.errors import InputError
from arl.metrics.run_status import RunStatus
from arl.watch import top
from arl.watch.run_logs import RoleLog, find_logs, show_logs
from tests.watch.statuses import a_run, a_status, writing


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


def test_without_a_role_the_ends_of_all_logs_are_shown_with_their_roles(tmp_path: Path) -> None:
    assert logs(with_logs(tmp_path), count=1) == [
        "engine-0 | serves",
        "engine-1 | dies",
        "evaluation/engine-0 | measures",
        "trainer-0 | step 3",
    ]


def test_following_a_run_that_has_ended_shows_also_a_line_without_an_end(tmp_path: Path) -> None:
    assert logs(with_logs(tmp_path), "engine", follow=True) == [
        "engine-0 | ready",
        "engine-0 | serves",
        "engine-1 | ready",
        "engine-1 | dies",
    ]


@pytest.mark.parametrize("ahead", [-100.0, 100.0])
def test_a_run_of_another_host_is_followed_to_its_end_whatever_its_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    monkeypatch.setattr(top, "SILENT_SECONDS", 60.0)
    run = a_run(tmp_path, a_status(host="n7", time=time.time() + ahead))
    log = run / "logs" / "trainer-0.log"
    log.parent.mkdir()
    log.write_text("step 0\n")
    numbers = itertools.count(1)

    def go_on() -> RunStatus:
        """Log a step and let its time be that of the host; the tenth step is the last one."""
        number = min(next(numbers), 10)
        with log.open("a") as file:
            file.write(f"step {number}\n" if number < 10 else "")
        os.utime(log, (0, 0))
        return a_status(host="n7", time=time.time() + ahead, end="finished" if number == 10 else "")

    with writing(run, go_on):
        assert logs(run, "trainer-0", follow=True) == [f"step {number}" for number in range(10)]


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
    log = RoleLog("a", file)
    shown = []
    for piece in pieces:
        with file.open("ab") as grown:
            grown.write(piece)
        shown += log.new_lines()
    shown += log.new_lines(is_last=True)
    whole = b"".join(pieces).split(b"\n")
    expected = whole if whole[-1] else whole[:-1]
    assert shown == [line.decode(errors="replace") for line in expected]


@given(st.text("ab\n", max_size=60), st.integers(0, 9))
def test_the_last_lines_of_a_log_are_those_at_its_end(
    tmp_path_factory: pytest.TempPathFactory, text: str, count: int
) -> None:
    file = tmp_path_factory.mktemp("log") / "a.log"
    file.write_text(text)
    log = RoleLog("a", file)
    log.seek_last(count)
    shown = log.new_lines(is_last=True)
    assert shown == (text.splitlines()[-count:] if count else [])
