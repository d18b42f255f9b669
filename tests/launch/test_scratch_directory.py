"""A scratch directory goes with the process that has made it, however that ends."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.processes import survivors

HOLDER = """
import sys
from pathlib import Path
from arl.launch.scratch_directory import removed_with_us

with removed_with_us(Path(sys.argv[1])):
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("is_killed", [True, False])
def test_it_and_its_guard_are_gone_after_the_block_and_after_the_end_of_a_job(tmp_path: Path, is_killed: bool) -> None:
    directory = tmp_path / "scratch"
    directory.mkdir()
    (directory / "weights").write_text("large")
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    (guard,) = psutil.Process(process.pid).children()
    if is_killed:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            guard.send_signal(number)
        process.kill()
    process.communicate(timeout=60)
    assert not survivors([guard])
    assert not directory.exists()
