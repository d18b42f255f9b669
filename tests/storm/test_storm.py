"""A signal to a real run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.machines import missing_for_machines
from tests.processes import MARK

SEED = 39  # draws: SIGKILL of the controller after 10 steps; two ranks, two engines, by file, with evaluations


@pytest.mark.slow
def test_a_run_that_is_hit_at_a_drawn_moment_ends_or_recovers_and_has_trained_every_problem_once(
    tmp_path: Path,
) -> None:
    missing = missing_for_machines()
    if missing is not None:
        pytest.skip(missing)
    out = tmp_path / "signals.json"
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    command = [sys.executable, "-m", "tests.storm", "--trials=1", "--patience=3", f"--seed={SEED}", f"--out={out}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(out.read_text())["signals"] == 1
