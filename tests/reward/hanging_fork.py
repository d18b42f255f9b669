"""Hang in the first process that is forked, as libraries with locks of their own can, and grade in the others."""

import os
import time
from pathlib import Path

from arl.types import Problem, Response
from tests.processes import MARK
from tests.reward.hostile import HANG


def score(problem: Problem, response: Response) -> float:
    return 1.0


def _hang_once() -> None:
    note = Path(os.environ[MARK]) / "forked"
    if not note.exists():
        note.touch()
        time.sleep(HANG)


os.register_at_fork(after_in_child=_hang_once)
