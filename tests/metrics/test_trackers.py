"""A tracker mirrors the metrics of a run, and can neither end nor delay it."""

import http.server
import json
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import wandb

from arl.config.recipe import Recipe
from arl.errors import InputError
from arl.metrics import trackers
from arl.metrics.base import TrackedRun
from arl.metrics.names import Record
from arl.metrics.trackers import check_trackers
from arl.metrics.wandb_tracker import NEWEST, WandbTracker, redacted
from tests.metrics.tracked_runs import evaluation_record, sample_of, step_record, tracked_run, tracker_thread


def recipe(**sections: Any) -> Recipe:
    return Recipe.model_validate({"model": {"path": "m"}, "data": {"path": "d"}} | sections)


class Broken:
    """Raise or wait at every record."""

    def __init__(self, at_record: Callable[[], object]) -> None:
        self._at_record = at_record

    def log(self, record: Record) -> None:
        self._at_record()

    def close(self) -> None: ...


def raising(*_: object) -> None:
    raise ConnectionError("the disk is full")


@pytest.mark.parametrize("make", [lambda _: Broken(raising), lambda _: Broken(sys.exit), raising, lambda _: object()])
def test_a_tracker_that_raises_is_dropped_with_one_line(make: Callable[[TrackedRun], Any]) -> None:
    notes: list[str] = []
    thread = tracker_thread(make, notes.append)
    thread.start()
    for step in range(3):
        thread.log({"step": step})
    thread.close()
    (note,) = notes
    assert note.startswith("tracker mine is dropped, and the run goes on without it: ")


@pytest.mark.parametrize(
    ("num_calls", "why"),
    [(20, "it hangs, and 10 calls wait for it"), (3, "it did not finish within 0.05 s after the end of the run")],
)
def test_a_tracker_that_hangs_delays_nothing_and_is_dropped(
    monkeypatch: pytest.MonkeyPatch, num_calls: int, why: str
) -> None:
    monkeypatch.setattr(trackers, "MAX_CALLS", 10)
    monkeypatch.setattr(trackers, "CLOSE_SECONDS", 0.05)
    gate, notes = threading.Event(), list[str]()
    thread = tracker_thread(lambda _: Broken(gate.wait), notes.append)
    thread.start()
    for step in range(num_calls):
        thread.log({"step": step})  # would hang here
    thread.close()
    gate.set()
    assert notes == [f"tracker mine is dropped, and the run goes on without it: {why}"]


class SickServer(http.server.BaseHTTPRequestHandler):
    """Answers 404 to everything, like a web server that is not wandb's."""

    def do_GET(self) -> None:
        self.send_error(404)

    do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None: ...


def test_a_server_that_is_not_wandbs_leaves_the_run_offline_with_everything_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), SickServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
        wandb.teardown()  # so that the next run reads these variables
        tracker = WandbTracker(tracked_run(tmp_path, note=notes.append, wandb="online"))
        for step in (1, 2, 3):
            tracker.log(step_record(step))
        tracker.log_samples(3, [sample_of(3)])
        tracker.log(evaluation_record(1, 0.75))
        tracker.log(evaluation_record(2, 0.5))
        tracker.log(step_record(4))  # wandb sums up a row when the next one comes
        shown = dict(tracker._run.summary)
        tracker.close()
        folder = (tmp_path / NEWEST).resolve()
        next_segment = WandbTracker(tracked_run(tmp_path, note=notes.append, wandb="online"))
        next_segment.close()
        wandb.teardown()  # waits until wandb's own process has written its file
        server.shutdown()
    (note,) = notes
    assert folder.name.startswith("offline-run-")
    newest = tmp_path / NEWEST
    assert re.search(rf"cannot be reached \(.*404.*\): it runs offline; sync later with `wandb sync {newest}`", note)
    assert newest.resolve() != folder
    assert shown["loss"] == pytest.approx(1 / 3)
    accuracy = shown["eval/held_out/accuracy"]
    assert (accuracy["max"], accuracy["last"]) == (0.75, 0.5)
    (table,) = folder.glob("files/media/table/*.json")
    assert "5, said step 3" in table.read_text()
    assert [file.stat().st_size > 0 for file in folder.glob("*.wandb")] == [True]


def test_online_without_a_key_is_refused_before_the_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("NETRC", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(InputError, match=r"output\.wandb online: no API key; run `wandb login`"):
        check_trackers(recipe(output={"wandb": "online"}))
    (tmp_path / "keys").touch()
    monkeypatch.setenv("NETRC", str(tmp_path / "keys"))
    check_trackers(recipe(output={"wandb": "online"}))


def test_values_of_environment_variables_never_reach_a_tracker_whatever_they_are_called() -> None:
    secret = {"environment": {"PROXY": "http://user:hunter2@proxy"}}
    shown = json.dumps(redacted(recipe(engine=secret, train=secret, reward=secret).model_dump(mode="json")))
    assert "hunter2" not in shown
    assert shown.count("PROXY") == 3
