"""Processes of a node share one copy of each published version, and leave nothing in its memory."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from arl.sync import node_copy
from arl.sync.node_copy import COPYING, NodeCopies, abandoned_directories, open_locked
from tests.waiting import wait_until

SECONDS = 30.0
# Holds the version that it is told to, prints where it lies, and waits.
HOLDER = """
import sys
from pathlib import Path
from arl.sync.node_copy import NodeCopies
published, version, memory, seconds = sys.argv[1:]
copies = NodeCopies(Path(published), float(seconds), Path(memory), say=lambda reason: print("said", reason, flush=True))
for line in sys.stdin:
    held = copies.hold(f"{published}/{version}")
    print(held.path, Path(held.path, "model.safetensors").read_bytes()[:9], flush=True)
    held.release()
copies.close()
"""


class Holder:
    """A process of the node."""

    def __init__(self, published: Path, memory: Path, version: str = "v1", seconds: float = SECONDS) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(published), version, str(memory), str(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def hold(self) -> str:
        self.ask()
        return self.answer()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(SECONDS) == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(SECONDS)


@pytest.fixture
def published(tmp_path: Path) -> Path:
    directory = tmp_path / "run" / "arl-weights-run"
    for number in (1, 2):
        publish(directory, number)
    return directory


def publish(directory: Path, number: int) -> Path:
    version = directory / f"v{number}"
    version.mkdir(parents=True)
    (version / "config.json").write_text("{}")
    (version / "model.safetensors").write_text(f"weights {number} " * 1000)
    return version


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """The memory of a node, which is empty at the end of each test."""
    place = tmp_path / "memory"
    place.mkdir()
    yield place
    wait_until(lambda: not list(place.iterdir()))


@contextmanager
def holders(number: int, published: Path, memory: Path, **more: float) -> Iterator[list[Holder]]:
    started = [Holder(published, memory, **more) for _ in range(number)]  # type: ignore[arg-type]
    try:
        yield started
    finally:
        for holder in started:
            if holder.process.poll() is None:
                holder.kill()


def test_a_version_is_read_once_on_a_node_and_the_others_read_the_copy(published: Path, memory: Path) -> None:
    with holders(2, published, memory) as (first, second):
        in_memory = f"{memory}/{published.name}/v1 b'weights 1'"
        assert first.hold() == in_memory
        (published / "v1").rename(published / "gone")  # nobody can read it there any more
        assert second.hold() == in_memory
        first.end()
        assert second.hold() == in_memory
        second.end()


def test_many_that_ask_at_once_make_one_copy(published: Path, memory: Path) -> None:
    with holders(6, published, memory) as asking:
        for holder in asking:
            holder.ask()
        assert {holder.answer() for holder in asking} == {f"{memory}/{published.name}/v1 b'weights 1'"}
        inodes = {(memory / published.name / "v1").stat().st_ino}
        assert {holder.hold() for holder in asking} == {f"{memory}/{published.name}/v1 b'weights 1'"}
        assert {(memory / published.name / "v1").stat().st_ino} == inodes
        for holder in asking:
            holder.end()


def test_whoever_is_left_when_all_others_are_killed_removes_the_copies(published: Path, memory: Path) -> None:
    with holders(3, published, memory) as (first, second, last):
        for holder in (first, second, last):
            holder.hold()
        first.kill()
        second.kill()
        assert (memory / published.name / "v1").exists()
        last.end()


def test_copies_are_removed_when_every_process_is_killed(published: Path, memory: Path) -> None:
    with holders(2, published, memory) as both:
        for holder in both:
            holder.hold()
        for holder in both:
            holder.kill()
        wait_until(lambda: not list(memory.iterdir()))


def test_the_next_run_removes_what_is_left_when_even_the_guard_is_killed(published: Path, memory: Path) -> None:
    with holders(1, published, memory) as (killed,):
        killed.hold()
        for pid in guards(memory / published.name):
            os.kill(pid, signal.SIGKILL)
        killed.kill()
    wait_until(lambda: bool(list(abandoned_directories(memory))))
    other = published.with_name("arl-weights-other")
    publish(other, 1)
    with holders(1, other, memory) as (next_run,):
        next_run.hold()
        assert [folder.name for folder in memory.iterdir()] == [other.name]
        next_run.end()


def guards(folder: Path) -> list[int]:
    """Find the processes that watch `folder`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(folder).encode() in words and node_copy.__file__.encode() in words:
            found.append(int(process.name))
    assert found
    return found


def test_what_a_killed_process_has_half_copied_is_never_read(published: Path, memory: Path) -> None:
    with holders(2, published, memory) as (killed, other):
        killed.hold()
        folder = memory / published.name
        (folder / "v1").rename(folder / ".v1")  # as it is before the last rename
        (folder / ".v1" / "model.safetensors").write_text("half")
        killed.kill()
        assert other.hold() == f"{folder}/v1 b'weights 1'"
        other.end()


def test_an_older_version_is_removed_for_a_newer_one_unless_somebody_reads_it(published: Path, memory: Path) -> None:
    said: list[str] = []
    copies = NodeCopies(published, SECONDS, memory, said.append)
    publish(published, 3)
    folder = memory / published.name
    with copies.hold(f"{published}/v1") as read:
        copies.hold(f"{published}/v2").release()
        assert Path(read.path, "model.safetensors").exists()
    copies.hold(f"{published}/v3").release()
    assert {path.name for path in folder.glob("v*")} == {"v3"}
    assert copies.hold(f"{published}/v2").path == f"{folder}/v2"  # an engine that has just started may need it
    copies.close()
    assert not said


def test_a_process_that_hangs_while_it_copies_holds_up_nobody_for_longer_than_the_deadline(
    published: Path, memory: Path
) -> None:
    with holders(1, published, memory, seconds=0.2) as (waiting,):
        folder = memory / published.name
        folder.mkdir()
        own = open_locked(folder, shared=True)
        assert own is not None
        (folder / COPYING).mkdir()
        hanging = open_locked(folder / COPYING)
        assert hanging is not None
        reason = waiting.hold()
        assert reason.startswith(f"said {folder}/v1: another process of this node has not copied it within 0.2 s")
        assert waiting.answer() == f"{published}/v1 b'weights 1'"
        assert waiting.hold() == f"{published}/v1 b'weights 1'"  # it does not wait for it again
        os.close(hanging)
        os.close(own)
        waiting.end()


@pytest.mark.parametrize("make", [os.mkfifo, Path.touch, lambda path: path.symlink_to("/tmp")])
def test_what_has_the_name_of_the_lock_and_is_none_holds_up_nobody_for_longer_than_the_deadline(
    published: Path, memory: Path, make: Callable[[Path], None]
) -> None:
    reasons: list[str] = []
    copies = NodeCopies(published, 0.2, memory, say=reasons.append)
    copies.hold(f"{published}/v1").release()
    (memory / published.name / COPYING).rmdir()
    make(memory / published.name / COPYING)
    found = copies.hold(f"{published}/v2").path
    copies.close()
    assert found == f"{published}/v2"
    assert len(reasons) == 1
    assert "has not copied it within 0.2 s" in reasons[0]


def test_copies_that_are_removed_as_soon_as_they_are_made_hold_up_nobody_for_longer_than_the_deadline(
    published: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons: list[str] = []
    copy_version = node_copy._copy

    def copy_and_lose(version: Path, copy: Path) -> None:
        copy_version(version, copy)
        shutil.rmtree(copy)  # by a process that makes room for a newer version

    monkeypatch.setattr(node_copy, "_copy", copy_and_lose)
    copies = NodeCopies(published, 0.2, memory, say=reasons.append)
    with copies.hold(str(published / "v1")) as held:
        assert held.path == str(published / "v1")
    copies.close()
    (reason,) = reasons
    assert "has not copied it within 0.2 s" in reason


def test_the_deadline_is_of_those_that_wait_and_not_of_the_one_that_copies(published: Path, memory: Path) -> None:
    copies = NodeCopies(published, 0.0, memory)
    assert copies.hold(f"{published}/v1").path == f"{memory}/{published.name}/v1"
    copies.close()


def test_without_room_in_memory_versions_are_read_where_they_are_and_the_log_says_so_once(
    published: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    copies = NodeCopies(published, SECONDS, memory, said.append)
    monkeypatch.setattr(node_copy, "RESERVE", 1 << 60)
    for version in ("v1", "v2"):
        assert copies.hold(f"{published}/{version}").path == f"{published}/{version}"
    assert len(said) == 1
    assert said[0].startswith(f"{memory} has no room for ")
    copies.close()


def test_what_is_not_published_by_this_run_is_read_where_it_is(published: Path, memory: Path, tmp_path: Path) -> None:
    copies = NodeCopies(published, SECONDS, memory)
    assert copies.hold(str(tmp_path / "checkpoint")).path == str(tmp_path / "checkpoint")
    copies.close()


def test_a_version_that_cannot_be_read_is_an_error(published: Path, memory: Path) -> None:
    copies = NodeCopies(published, SECONDS, memory)
    with pytest.raises(FileNotFoundError, match="v9"):
        copies.hold(f"{published}/v9")
    copies.close()
