"""What `arl bench` runs. Results are one JSON document on stdout; progress goes to stderr."""

import json
import os
import platform
import re
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arl.metrics.console import ConsoleDisplay


def stderr_display() -> "ConsoleDisplay":
    """Open a display on stderr, since stdout is for the JSON document."""
    from rich.console import Console

    from arl.metrics.console import ConsoleDisplay

    return ConsoleDisplay(Console(stderr=True, highlight=False))


def sglang_version() -> str:
    """Of the SGLang that is found here; "absent", and why on stderr."""
    from arl.engine.sglang.installed import find_sglang
    from arl.errors import InputError

    try:
        return find_sglang(None).version
    except InputError as error:
        stderr_display().note(f"SGLang is absent: {error}")
        return "absent"


def to_json(document: dict[str, Any]) -> str:
    """The document after the machine it was measured on; indented, innermost lists on one line each."""
    text = json.dumps({"measured_on": _machine()} | document, indent=1)
    return re.sub(r"\[[^][{}]*\]", lambda match: " ".join(match.group().split()), text)


def _machine() -> dict[str, str]:
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    versions = {name: version(name) for name in ("torch", "transformers")}
    cores = f"{len(os.sched_getaffinity(0))} cores"
    return {
        "cpu": f"{cpu.group(1) if cpu else platform.machine()}, {cores}",
        "python": platform.python_version(),
    } | versions
