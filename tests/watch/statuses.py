"""Statuses of runs that tests make up."""

import os
import platform
import time
from pathlib import Path
from typing import Any

from arl.metrics.run_files import RECIPE
from arl.metrics.run_status import ProcessStatus, RunStatus, Speed, WaitStatus, write_status


def a_status(**fields: Any) -> RunStatus:
    """Return the status of a run that trains, with other `fields`."""
    training: dict[str, Any] = {
        "host": platform.node(),
        "pid": os.getpid(),
        "time": time.time(),
        "stage": "training",
        "version": 12,
        "steps": 60,
        "loaded_version": 11,
        "bound": "bound 2",
        "groups": (6, 2),
        "waits": (WaitStatus("trainer", "4 groups for step 12", 3.25),),
        "speed": Speed(
            steps=10,
            step_seconds=0.75,
            generated_per_s=1234.0,
            trained_per_s=1100.0,
            trainer_waits={"groups": 0.6, "bound": 0.02, "device": 0.0},
            engine_idle=0.05,
            gate=0.03,
        ),
        "rewards": {"held_out": (10, 0.625), "training": (12, 0.5)},
        "seconds_left": 36.0,
        "processes": (ProcessStatus(role="engine-0", node="n1", pid=17, version=11, open=9),),
    }
    return RunStatus(**(training | fields))


def a_run(directory: Path, status: RunStatus | None = None) -> Path:
    """Make the directory of a run with this status."""
    (directory / RECIPE).write_text("name: small\n")
    if status is not None:
        write_status(directory, status)
    return directory
