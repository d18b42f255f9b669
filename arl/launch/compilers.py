"""Look for what Triton compiles with at run time: a C compiler, and the header of the interpreter's Python.

Triton builds a small C module for each kind of launch (triton/runtime/build.py). PyTorch's own attention and our
kernels need it in trainer ranks, and most of SGLang's kernels in engine servers.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from arl.launch.interpreter import run_code

HEADER = "Python.h"
SECONDS = 60.0
ASK = "import sysconfig; print(sysconfig.get_paths('posix_prefix')['include'])"
INSTALL_COMPILER = "install one (apt install gcc), or name it in the environment variable CC"


def c_compiler() -> str | None:
    """Return the path of the compiler that Triton would take: CC, gcc or clang; None: there is none."""
    chosen = os.environ.get("CC")
    if chosen is not None:
        return shutil.which(chosen.split()[0]) if chosen.strip() else None
    return shutil.which("gcc") or shutil.which("clang")


def lacks_header(python: str = sys.executable) -> str | None:
    """Return the directory in which `python` has no Python.h although it belongs there; None: it has it.

    None as well where the interpreter cannot be run, which whoever needs it reports.
    """
    try:
        done = run_code(python, ASK, SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return None
    directory = Path(lines[-1])
    return None if os.path.exists(directory / HEADER) else str(directory)


def install_header(directory: str) -> str:
    """Say how to get Python.h into `directory`, which is named after the Python: python3.11."""
    version = Path(directory).name
    return f"install it (apt install {version}-dev), or use an interpreter that brings its headers"
