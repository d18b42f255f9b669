"""Run what `arl bench` measures. The result is one JSON document on stdout; progress goes to stderr."""

import json
import platform
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

from arl.launch.devices import visible_cores


def sglang_version() -> str:
    """Return the version of the SGLang that is found here; "absent" if there is none, and why on stderr."""
    from arl.engine.sglang.sglang_backend import find_sglang
    from arl.errors import InputError
    from arl.metrics.console import stderr_display

    try:
        return find_sglang(None).version
    except InputError as error:
        stderr_display().note(f"SGLang is absent: {error}")
        return "absent"


def to_json(document: dict[str, Any]) -> str:
    """Write the machine and then the document as indented JSON, with each innermost list on one line."""
    text = json.dumps({"measured_on": _machine()} | document, indent=1)
    return re.sub(r"\[[^][{}]*\]", lambda match: " ".join(match.group().split()), text)


def _machine() -> dict[str, str]:
    """Return CPU and versions; benchmarks add their device."""
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    cpu = found.group(1) if found else platform.machine()
    num_cores = visible_cores()
    return {
        "cpu": f"{cpu}, {num_cores} cores",
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
    }
