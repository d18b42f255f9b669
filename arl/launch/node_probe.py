"""Report what a node has and sees. A launcher runs this on every node, before anything else.

    python -m arl.launch.node_probe SPEC     prints a line: `arl-node `, and a NodeReport as JSON

SPEC is a ProbeSpec as JSON. The file `nonce` in its directory is read, and a file of this node's name is written beside
it, so that the controller knows whether both see the same file system.
"""

import importlib.metadata
import os
import platform
import sys
import time
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from arl.errors import InputError
from arl.launch.address import free_listener, interfaces, own_address
from arl.launch.devices import visible_cores, visible_devices
from arl.launch.gpu_devices import smallest_device
from arl.launch.tls import is_loopback

NONCE = "nonce"
MARK = "arl-node "  # begins the line of the report, because others may print as well
PACKAGES = ("arl", "torch", "transformers", "msgspec")
DRIVER = Path("/proc/driver/nvidia/version")


class ProbeSpec(Struct, frozen=True):
    """Say what to look at."""

    directory: str  # on the common file system
    interface: str | None


Name = Annotated[str, Meta(max_length=256)]
Count = Annotated[int, Meta(ge=0, le=1 << 50)]


class NodeReport(Struct, frozen=True):
    """Hold what one node has. `problem` is empty, or says why it cannot take part."""

    name: Name
    address: Name = ""
    cores: Count = 0
    devices: tuple[Name, ...] = ()
    device_name: Name = "GPU"
    device_bytes: Count | None = None
    versions: dict[Name, Name] = {}  # package -> version, python included
    clock: float = 0.0  # time.time()
    nonce: Name = ""
    interfaces: dict[Name, Name] = {}  # that other nodes may reach -> IPv4 address
    problem: str = ""


def probe(spec: ProbeSpec) -> NodeReport:
    """Look at this node."""
    name = platform.node()
    try:
        address = own_address(spec.interface)
        free_listener(address).close()  # raises if this machine does not have it
        may_have_devices = os.path.exists(DRIVER)
        devices = visible_devices() if may_have_devices else ()  # which imports torch
        nonce = _exchange(Path(spec.directory), name)
    except (OSError, InputError) as error:
        return NodeReport(name, problem=str(error))
    device_name, device_bytes = (smallest_device(devices) if devices else None) or ("GPU", None)
    return NodeReport(
        name=name,
        address=address,
        cores=visible_cores(),
        devices=devices,
        device_name=device_name,
        device_bytes=device_bytes,
        versions=_versions(),
        clock=time.time(),
        nonce=nonce,
        interfaces={interface: own for interface, own in interfaces().items() if not is_loopback(own)},
    )


def _exchange(directory: Path, name: str) -> str:
    """Read what the controller has written, and write a file of our own; "": there is nothing to read."""
    nonce = directory / NONCE
    if not os.path.exists(nonce):
        return ""
    (directory / name).write_text(nonce.read_text())
    return nonce.read_text()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        found[package] = importlib.metadata.version(package)
    return found


def main() -> None:
    """Print the report of this node."""
    spec = msgspec.json.decode(sys.argv[1], type=ProbeSpec)
    print(MARK + msgspec.json.encode(probe(spec)).decode(), flush=True)


if __name__ == "__main__":
    main()
