"""What `arl top` shows of a status, and what it says where there is none."""

import io
import os
import platform
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from arl.errors import InputError
from arl.metrics.run_status import RESUMING, GroupsStatus, ProcessStatus, WaitStatus
from arl.metrics.status_view import draw_status, rows_that_fit
from arl.watch import liveness
from arl.watch.liveness import describe_silence
from arl.watch.run_logs import find_logs
from arl.watch.top import show_once
from tests.watch.statuses import a_run, a_status, writing

NOBODY = 2**22 + 1  # above the largest pid that Linux gives
LONG_AGO = 100.0


def top(run: Path) -> str:
    """Return what `arl top RUN --once` prints."""
    shown = io.StringIO()
    show_once(run, Console(file=shown, width=160))
    return shown.getvalue()


def test_a_status_says_who_waits_and_why_with_queue_staleness_speed_and_accuracy(tmp_path: Path) -> None:
    shown = top(a_run(tmp_path, a_status()))
    assert [line.rstrip() for line in shown.splitlines()] == [
        f"…/{tmp_path.name} · training · version 12 of 60 · 0.8 s a step · about 36 s left",
        "trainer    waits 62% of the time: for groups 60%, for the staleness bound 2%",
        "engines    idle 5% of the time; 3% because no group may start before weights are loaded",
        "now        trainer waits 3.2 s for 4 groups for step 12",
        "groups     8 of 12 in flight: 6 running, 2 finished; a step takes 4",
        "staleness  bound 2; engines serve version 11, the trainer has 12; last step mean 1.25, max 2",
        "tokens/s   1,234 generated, 1,100 trained (last 10 steps)",
        "reward     0.500 in step 12 · held_out 0.625 at version 10",
        "role      node  pid  version  open",
        "engine-0  n1    17        11     9",
    ]


def test_a_trainer_that_waits_though_enough_groups_have_finished_is_explained(tmp_path: Path) -> None:
    groups = GroupsStatus(running=2, finished=4, capacity=12, problems_per_step=4)
    waits = (WaitStatus("trainer", "4 groups for step 12; 2 groups running, 4 finished", 3.25),)
    due = top(a_run(tmp_path, a_status(groups=groups, waits=waits)))
    assert (
        "now        trainer waits 3.2 s for 4 groups for step 12: "
        "enough have finished, but a group that is due first still runs\n"
    ) in re.sub(" +\n", "\n", due)
    ahead = top(a_run(tmp_path, a_status(groups=groups, waits=waits, staleness=None)))
    assert "enough have finished, but engines must load newer weights first" in ahead


def test_a_run_that_ends_by_tokens_shows_how_many_are_trained(tmp_path: Path) -> None:
    shown = top(a_run(tmp_path, a_status(tokens=1_200_000, most_tokens=2_000_000)))
    assert "version 12 of 60 · 1,200,000 of 2,000,000 tokens · 0.8 s a step" in shown


def test_a_long_path_leaves_the_headline_in_one_line_of_a_small_terminal() -> None:
    console = Console(file=io.StringIO(), width=80, height=24)
    lines = console.render_lines(draw_status(a_status(), "/shared/home/ada/experiments/runs/quickstart"))
    first = "".join(segment.text for segment in lines[0]).rstrip()
    assert first == "…/quickstart · training · version 12 of 60 · 0.8 s a step · about 36 s left"


def test_of_hundreds_of_processes_those_in_trouble_are_shown(tmp_path: Path) -> None:
    processes = [ProcessStatus(role=f"engine-{i}", node="n1", pid=100 + i) for i in range(300)]
    processes[200] = ProcessStatus(role="engine-200", node="n2", pid=300, restarts=3)
    processes[290] = ProcessStatus(role="engine-290", node="n2", pid=390, state="ended, code -9")
    shown = top(a_run(tmp_path, a_status(processes=tuple(processes))))
    assert "engine-200" in shown
    assert "ended, code -9" in shown
    assert "… and 276 more processes" in shown


def test_in_a_small_terminal_the_view_of_many_processes_is_not_cut_off() -> None:
    processes = tuple(ProcessStatus(role=f"engine-{i}", node="n1", pid=100 + i) for i in range(300))
    console = Console(file=io.StringIO(), width=80, height=24)
    view = draw_status(a_status(processes=processes), "runs/small", rows_that_fit(console.height))
    lines = console.render_lines(view)
    assert len(lines) < 24
    assert "… and 295 more processes" in "".join(segment.text for segment in lines[-1])


@pytest.mark.parametrize(
    ("pid", "host", "why"),
    [
        (NOBODY, platform.node(), "there is no such process any more: it was killed"),
        (os.getpid(), platform.node(), "does not hold the run's lock: it is another one"),
    ],
    ids=["killed", "another process"],
)
def test_an_old_status_says_for_how_long_nobody_wrote_and_what_is_known_of_the_process(
    tmp_path: Path, pid: int, host: str, why: str
) -> None:
    status = a_status(pid=pid, host=host, time=time.time() - LONG_AGO)
    shown = top(a_run(tmp_path, status))
    first, second, *_ = shown.splitlines()
    assert f"the controller (process {pid} on {host}) has not written for 1" in first
    assert why in first
    assert "last seen: training · version 12 of 60 · 0.8 s a step" in second
    assert not any(line.startswith("now ") for line in shown.splitlines())
    assert " left" not in shown


@pytest.mark.parametrize("ahead", [-LONG_AGO, 0.0, LONG_AGO])
def test_a_run_of_another_host_that_writes_nothing_any_more_is_found_out_whatever_its_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    monkeypatch.setattr(liveness, "SILENT_SECONDS", 0.1)
    shown = top(a_run(tmp_path, a_status(pid=NOBODY, host="n7", time=time.time() + ahead)))
    said = rf"\(process {NOBODY} on n7\) has not written for \d+ s; whether it still runs can be seen on n7 alone"
    assert re.search(said, shown), shown


@pytest.mark.parametrize("ahead", [-LONG_AGO, LONG_AGO])
def test_a_run_of_another_host_that_writes_is_not_said_to_be_silent_whatever_its_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    monkeypatch.setattr(liveness, "SILENT_SECONDS", 60.0)
    run = a_run(tmp_path, a_status(host="n7", time=time.time() + ahead))
    with writing(run, lambda: a_status(host="n7", time=time.time() + ahead)):
        shown = top(run)
    assert "training" in shown
    assert "has not written" not in shown


def test_a_controller_that_holds_its_lock_and_does_not_write_hangs(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    status = a_status(time=time.time() - LONG_AGO)
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl, sys; file = open('run.lock', 'w'); fcntl.flock(file, fcntl.LOCK_EX); "
            "print('locked', flush=True); sys.stdin.read()",
        ],
        cwd=run,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        said = describe_silence(run, status, LONG_AGO)
        assert "has not written for 100 s; the run's lock is held, so it runs, and hangs or is stopped" in said
        resuming = msgspec.structs.replace(status, stage=RESUMING)
        assert "it will when the checks are done" in describe_silence(run, resuming, LONG_AGO)
        holder.terminate()
    assert "it is another one" in describe_silence(run, status, LONG_AGO)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "has no status.json"),
        (b"", "is damaged"),
        (b'{"host": "vm"', "is damaged"),
        (b'{"host": 3}', "is damaged, or of another version of arl"),
    ],
)
def test_a_status_that_is_missing_or_damaged_is_one_clear_error(
    tmp_path: Path, content: bytes | None, complaint: str
) -> None:
    run = a_run(tmp_path)
    if content is not None:
        (run / "status.json").write_bytes(content)
    with pytest.raises(InputError, match=complaint):
        top(run)


def test_a_directory_above_runs_is_refused_with_their_names(tmp_path: Path) -> None:
    run = tmp_path / "small"
    run.mkdir()
    a_run(run)
    complaint = f"is no run, because it has no recipe.yaml; there are {run}"
    with pytest.raises(InputError, match=complaint):
        top(tmp_path)
    with pytest.raises(InputError, match=complaint):
        find_logs(tmp_path, None)
    with pytest.raises(InputError, match="is no directory"):
        top(tmp_path / "nothing")


def test_in_a_terminal_the_view_stays_until_q_is_pressed(tmp_path: Path) -> None:
    run = a_run(tmp_path, a_status())
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "arl.cli", "top", str(run)]
    with subprocess.Popen(command, stdin=slave, stdout=slave, env={**os.environ, "TERM": "xterm"}) as process:
        os.close(slave)
        shown = b""
        while b"engine-0" not in shown:
            shown += os.read(master, 4096)
        assert process.poll() is None
        os.write(master, b"q")
        try:
            assert process.wait(60) == 0
        finally:
            process.kill()
    os.close(master)
