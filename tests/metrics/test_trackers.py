"""A tracker mirrors the metrics of a run, and can neither end nor delay it."""

import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import wandb

from arl.config.recipe import Recipe
from arl.errors import InputError, RecipeError
from arl.metrics import wandb_tracker
from arl.metrics.base import TrackedRun, TrackerMaker
from arl.metrics.names import Record
from arl.metrics.tracker_thread import TrackerThread
from arl.metrics.trackers import check_trackers, make_trackers
from arl.metrics.wandb_tracker import WandbTracker


def recipe(**output: Any) -> Recipe:
    return Recipe.model_validate({"model": {"path": "m"}, "data": {"path": "d"}, "output": output})


class Remembering:
    """Keep every record, and wait or raise before that if the test wants it."""

    def __init__(self, before: Callable[[], object] = lambda: None) -> None:
        self.records: list[Record] = []
        self.closed = False
        self.threads: set[int] = set()
        self._before = before

    def log(self, record: Record) -> None:
        self._before()
        self.threads.add(threading.get_ident())
        self.records.append(record)

    def close(self) -> None:
        self.closed = True


def test_a_tracker_gets_every_record_in_order_in_a_thread_of_its_own() -> None:
    tracker, notes = Remembering(), list[str]()
    thread = TrackerThread(TrackerMaker("mine", lambda: tracker), notes.append)
    for step in range(5):
        thread.log({"step": step})
    thread.close()
    assert tracker.records == [{"step": step} for step in range(5)]
    assert tracker.closed
    assert threading.get_ident() not in tracker.threads
    assert not notes


def raising() -> None:
    raise ConnectionError("the disk is full")


@pytest.mark.parametrize("make", [lambda: Remembering(raising), lambda: Remembering(sys.exit), raising, object])
def test_a_tracker_that_raises_is_dropped_with_one_line(make: Callable[[], Any]) -> None:
    notes: list[str] = []
    thread = TrackerThread(TrackerMaker("mine", make), notes.append)
    for step in range(3):
        thread.log({"step": step})
    thread.close()
    (note,) = notes
    assert note.startswith("tracker mine is dropped, and the run goes on without it: ")


def test_a_tracker_that_hangs_delays_nothing_and_is_dropped_at_the_deadline_of_the_end() -> None:
    gate, notes = threading.Event(), list[str]()
    tracker = Remembering(gate.wait)
    thread = TrackerThread(TrackerMaker("mine", lambda: tracker), notes.append, close_seconds=0.05)
    for step in range(100):
        thread.log({"step": step})  # would hang here
    thread.close()
    gate.set()
    assert notes == [
        "tracker mine is dropped, and the run goes on without it: it did not finish within 0.05 s after the end of "
        "the run"
    ]


def test_a_tracker_that_hangs_in_one_call_is_dropped_while_the_run_goes_on() -> None:
    gate, notes = threading.Event(), list[str]()

    def make() -> Remembering:
        gate.wait()
        return Remembering()

    thread = TrackerThread(TrackerMaker("mine", make), notes.append, call_seconds=0.0)
    while not notes:
        thread.log({"step": 0})
    thread.close()
    gate.set()
    assert "one call has taken more than 0 s" in notes[0]


@pytest.fixture
def inits(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Collect the arguments of each wandb.init, which registers nothing."""
    calls: list[dict[str, Any]] = []

    def init(**arguments: Any) -> SimpleNamespace:
        calls.append(arguments)
        if arguments["mode"] == "online":
            raise wandb.errors.CommError("permission denied")
        logged: list[dict[str, Any]] = []
        files = str(arguments["dir"] / "wandb" / "offline-run-1" / "files")
        return SimpleNamespace(log=logged.append, define_metric=lambda *_, **__: None, logged=logged, dir=files)

    monkeypatch.setattr(wandb, "init", init)
    return calls


def tracked(directory: Path, mode: str, note: Callable[[str], None]) -> TrackedRun:
    return TrackedRun(directory.name, directory, recipe(wandb=mode).model_dump(mode="json"), note)


def test_wandb_is_given_histograms_of_the_counts(inits: list[dict[str, Any]], tmp_path: Path) -> None:
    tracker = WandbTracker(tracked(tmp_path, "offline", lambda _: None))
    tracker.log({"step": 3, "token_age/histogram": [4, 2]})
    logged = tracker._run.logged
    histogram = logged[0].pop("token_age/histogram")
    assert logged == [{"step": 3}]
    assert (histogram.histogram, histogram.bins) == ([4, 2], [0, 1, 2])


def test_the_wandb_run_has_the_name_of_the_run_directory(inits: list[dict[str, Any]], tmp_path: Path) -> None:
    (maker,) = make_trackers(recipe(wandb="offline"), tmp_path / "quickstart-2", lambda _: None)
    maker.make()
    assert (inits[0]["name"], inits[0]["mode"], inits[0]["project"]) == ("quickstart-2", "offline", "arl")


def test_without_a_network_wandb_goes_offline_and_says_so_in_one_line(
    inits: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as refusing:  # bound, and not listening
        refusing.bind(("127.0.0.1", 0))
        settings = SimpleNamespace(base_url=f"http://127.0.0.1:{refusing.getsockname()[1]}")
        monkeypatch.setattr(wandb, "setup", lambda: SimpleNamespace(settings=settings))
        notes: list[str] = []
        started = time.monotonic()
        WandbTracker(tracked(tmp_path, "online", notes.append))
    assert [call["mode"] for call in inits] == ["offline"]
    (note,) = notes
    assert "no network, http://127.0.0.1:" in note
    assert f"sync later with `wandb sync {tmp_path}/wandb/offline-run-1`" in note
    assert time.monotonic() - started < 60


def test_a_server_that_refuses_the_run_leaves_it_offline(
    inits: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wandb_tracker, "is_reachable", lambda url: True)
    notes: list[str] = []
    WandbTracker(tracked(tmp_path, "online", notes.append))
    assert [call["mode"] for call in inits] == ["online", "offline"]
    assert "refuses the run (permission denied): wandb runs offline" in notes[0]


def test_online_without_a_key_is_refused_before_the_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("NETRC", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(InputError, match=r"output\.wandb online: no API key; run `wandb login`"):
        check_trackers(recipe(wandb="online"))
    (tmp_path / "keys").touch()
    monkeypatch.setenv("NETRC", str(tmp_path / "keys"))
    check_trackers(recipe(wandb="online"))


class NoClose:
    def __init__(self, run: TrackedRun) -> None: ...

    def log(self, record: Record) -> None: ...


class WrongLog(NoClose):
    def log(self) -> None:  # type: ignore[override]
        ...

    def close(self) -> None: ...


class NoRun:
    def log(self, record: Record) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wandb", "set output.wandb to online or offline instead"),
        ("csv", "write it as module:"),
        ("nowhere.to:Find", "cannot import nowhere.to"),
        (f"{__name__}:Absent", "has no"),
        (f"{__name__}:NoClose", r"lacks the method close\(\); see .*WandbTracker for a complete one"),
        (f"{__name__}:WrongLog", r"log\(self\).* cannot be called as log\(record\)"),
        (f"{__name__}:NoRun", r"NoRun\(\) cannot be called as NoRun\(run\)"),
    ],
)
def test_what_is_no_tracker_is_refused_before_the_start(name: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        check_trackers(recipe(trackers=[name]))
