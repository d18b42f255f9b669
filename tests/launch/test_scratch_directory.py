"""A scratch directory goes with the process that has made it, however that ends."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil

from arl.launch.scratch_directory import removed_with_us
from tests.processes import survivors

HOLDER = """
import sys
from pathlib import Path
from arl.launch.scratch_directory import removed_with_us

with removed_with_us(Path(sys.argv[1])):
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_it_is_gone_after_the_block_and_so_is_its_guard(tmp_path: Path) -> None:
    directory = tmp_path / "scratch"
    directory.mkdir()
    before = psutil.Process().children()
    with removed_with_us(directory):
        (directory / "weights").write_text("large")
    assert not directory.exists()
    assert not survivors(set(psutil.Process().children()).difference(before))


def test_it_is_gone_when_its_process_was_killed_at_the_end_of_a_job(tmp_path: Path) -> None:
    directory = tmp_path / "scratch"
    directory.mkdir()
    (directory / "weights").write_text("large")
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    (guard,) = psutil.Process(process.pid).children()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        guard.send_signal(number)
    process.kill()
    process.communicate(timeout=60)
    assert not survivors([guard])
    assert not directory.exists()
