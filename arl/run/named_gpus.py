"""Know the memory of GPUs, at hand or named: `--gpus 8xH100` plans for a machine that is not there. Torch-free."""

import re
from dataclasses import replace

from arl.errors import InputError
from arl.launch.base import Node
from arl.launch.devices import visible_cores

GIGABYTE = 10**9
# Memory of one GPU by its maker's data sheet, in units of 10^9 bytes.
KNOWN = {
    "A10G": 24,
    "A100-40GB": 40,
    "A100": 80,
    "A800": 80,
    "H100": 80,
    "H100-NVL": 94,
    "H800": 80,
    "H200": 141,
    "B200": 180,
    "L4": 24,
    "L40S": 48,
    "RTX3090": 24,
    "RTX4090": 24,
    "RTX5090": 32,
}
SIZE = r"([0-9]{1,6})GB"
PATTERN = re.compile(r"([1-9][0-9]?)\s*[xX]\s*(.+)")


def named_node(text: str) -> Node:
    """Return a machine with the GPUs that `text` names, and as many CPU cores as this one.

    >>> node = named_node("2xH100")
    >>> node.devices, node.device_name, node.device_bytes
    (('0', '1'), 'H100', 80000000000)

    Raises:
        InputError: not of the form NUMBERxNAME or NUMBERxMEMORYGB, or a GPU that is not known.
    """
    match = PATTERN.fullmatch(text.strip())
    if match is None:
        raise InputError(f"--gpus {text}: give a number and a kind, as in 8xH100 or 8x80GB")
    count = int(match[1])
    name = match[2].strip()
    num_bytes = _bytes_of(name, text)
    is_size = re.fullmatch(SIZE, _plain(name)) is not None
    return Node(
        name="the named machine",
        cores=visible_cores(),
        devices=tuple(str(i) for i in range(count)),
        device_name="GPU" if is_size else name,
        device_bytes=num_bytes,
        planned_by=f"--gpus {text}",
        cores_from="as many as this machine has",
    )


def named_nodes(text: str, count: int) -> list[Node]:
    """Return `count` machines with the GPUs that `text` names each.

    Raises:
        InputError: see `named_node`.
    """
    node = named_node(text)
    if count == 1:
        return [node]
    return [replace(node, name=f"node {number}") for number in range(1, count + 1)]


def describe_gpus(node: Node) -> str:
    """Say how many GPUs of what kind a node has, and whose they are.

    >>> describe_gpus(named_node("8x24GB")), describe_gpus(named_node("1xH100"))
    ('8 GPUs of 24 GB (--gpus 8x24GB)', '1 H100 of 80 GB (--gpus 1xH100)')
    """
    count = len(node.devices)
    if node.planned_by is None:
        return f"{count} {node.device_name} of {node.name}"
    kind = node.device_name
    plural = "s" if kind == "GPU" and count > 1 else ""
    return f"{count} {kind}{plural} of {(node.device_bytes or 0) // GIGABYTE} GB ({node.planned_by})"


def _bytes_of(name: str, text: str) -> int:
    wanted = _plain(name)
    for known, gigabytes in KNOWN.items():
        if _plain(known) == wanted:
            return gigabytes * GIGABYTE
    if (size := re.fullmatch(SIZE, wanted)) and int(size[1]) > 0:
        return int(size[1]) * GIGABYTE
    raise InputError(f"--gpus {text}: {name} is not known; give one of {', '.join(KNOWN)}, or its memory, as in 8x80GB")


def _plain(name: str) -> str:
    """Return a name without what people write differently: `RTX 4090`, `rtx-4090`."""
    return re.sub(r"[\s_-]", "", name).upper()
