"""Describe the machine for a bug report, and keep secrets out of it."""

import os
import platform
import re
import shutil
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from arl.config.environment import SECRET_ENDINGS
from arl.launch.base import Node
from arl.launch.devices import VISIBLE_DEVICES
from arl.launch.gpu_devices import driver_version
from arl.launch.host_memory import free_memory
from arl.run.smoke.smoke_types import SmokeReport
from arl.sync.weight_folders import SHARED_MEMORY

# Beginnings of the names of the variables that matter; a name that ends like a secret's is left out all the same.
SHOWN = (VISIBLE_DEVICES, "NCCL_", "TORCH_", "PYTORCH_CUDA_ALLOC_CONF", "OMP_", "ARL_")
HIDDEN = "[hidden]"
MIN_SECRET = 8  # characters: a shorter value would be found by chance

T = TypeVar("T")


class Secrets:
    """Replace secrets in texts: the run's key, and the values of variables whose names end like a secret's.

    Args:
        key: of the run.
        environment: of this process.
    """

    def __init__(self, key: str, environment: Mapping[str, str]) -> None:
        values = [key]
        for name, value in environment.items():
            if _is_secret(name) and len(value) >= MIN_SECRET:
                values.append(value)
        self._values = sorted(values, key=len, reverse=True)

    def hide(self, text: str) -> str:
        """Return the text without secrets."""
        for value in self._values:
            text = text.replace(value, HIDDEN)
        return text

    def hide_in(self, value: T) -> T:
        """Return a copy of a struct in which no text has a secret."""
        plain = msgspec.to_builtins(value)
        hidden = self._hide_deep(plain)
        return msgspec.convert(hidden, type(value))

    def _hide_deep(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, dict):
            return {key: self._hide_deep(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._hide_deep(inner) for inner in value]
        return value


def shown_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that matter to a run, none of them a secret."""
    shown = {}
    for name in sorted(environment):
        if name.startswith(SHOWN) and not _is_secret(name):
            shown[name] = environment[name]
    return shown


def describe_machine(node: Node) -> dict[str, Any]:
    """Describe hardware and system of `node`, on which this process runs."""
    load = [round(average, 1) for average in os.getloadavg()]
    return {
        "system": platform.platform(),
        "cpu": _cpu_name(),
        "cores": node.cores,
        "devices": list(node.devices),
        "device_name": node.device_name if node.devices else None,
        "driver": driver_version(),
        "load_average": load,
        "free_memory_gb": _gigabytes(free_memory()),
        "free_shared_memory_gb": _free_shared_memory(),
    }


def _cpu_name() -> str:
    """Return the name of the CPU, or its architecture where the kernel gives no name."""
    cpus = Path("/proc/cpuinfo").read_text()
    found = re.search(r"model name\s*: (.*)", cpus)
    if found is None:
        return platform.machine()
    return found[1]


def _free_shared_memory() -> float | None:
    """Return the gigabytes that are free; None: there is no shared memory in the file system."""
    if not os.path.isdir(SHARED_MEMORY):
        return None
    usage = shutil.disk_usage(SHARED_MEMORY)
    return _gigabytes(usage.free)


def _gigabytes(num_bytes: int) -> float:
    return round(num_bytes / 1e9, 1)


def installed_versions(engines: Mapping[str, str]) -> dict[str, str]:
    """Return the versions of what computes.

    Args:
        engines: kind of backend -> what was found of it.
    """
    versions = {"python": platform.python_version()}
    for name in ("arl", "torch", "transformers", "safetensors", "triton"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "absent"
    for kind, found in engines.items():
        versions[f"engine {kind}"] = found
    return versions


def to_json(report: SmokeReport) -> str:
    """Write the report as one indented JSON document."""
    document = msgspec.json.encode(report)
    return msgspec.json.format(document, indent=1).decode()


def _is_secret(name: str) -> bool:
    return name.upper().endswith(SECRET_ENDINGS)
