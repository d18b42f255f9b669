"""Have another Python interpreter run a few lines, to ask what it has."""

import os
import subprocess
from collections.abc import Mapping

ALONE: Mapping[str, str] = {"PYTHONPATH": ""}  # our packages are not for another interpreter


def run_code(python: str, code: str, seconds: float) -> subprocess.CompletedProcess[str]:
    """Have the interpreter at `python` run `code`, with its own packages only.

    Args:
        seconds: after which it is ended.

    Raises:
        OSError: it cannot be run.
        subprocess.TimeoutExpired: it takes longer.
    """
    return subprocess.run(
        [python, "-c", code],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env={**os.environ, **ALONE},
        cwd="/",  # a file of the working directory could shadow one of its modules
    )


def last_words(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last line that a failed process printed; if it printed none, its exit code."""
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}, and no answer"
