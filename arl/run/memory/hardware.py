"""Know the memory of GPUs, at hand or named: `--gpus 8xH100` plans for a machine that is not there. Torch-free."""

import re

from arl.errors import InputError
from arl.launch.base import Node
from arl.launch.devices import visible_cores

GIGABYTE = 10**9
# Memory of one GPU by its maker's data sheet, in units of 10^9 bytes.
KNOWN = {
    "A10G": 24,
    "A100-40GB": 40,
    "A100": 80,
    "H100": 80,
    "H100-NVL": 94,
    "H200": 141,
    "B200": 180,
    "L4": 24,
    "L40S": 48,
    "RTX3090": 24,
    "RTX4090": 24,
    "RTX5090": 32,
}
PATTERN = re.compile(r"(\d+)\s*[xX]\s*(.+)")


def named_node(text: str) -> Node:
    """Return a machine with the GPUs that `text` names, and as many CPU cores as this one.

    >>> node = named_node("2xH100")
    >>> node.devices, node.device_name, node.device_bytes
    (('0', '1'), 'H100', 80000000000)

    Raises:
        InputError: not of the form NUMBERxNAME or NUMBERxMEMORYGB, or a GPU that is not known.
    """
    match = PATTERN.fullmatch(text.strip())
    if match is None or int(match[1]) == 0:
        raise InputError(f"--gpus {text}: give a number and a kind, as in 8xH100 or 8x80GB")
    name = match[2].strip()
    return Node(
        name="the named machine",
        cores=visible_cores(),
        devices=tuple(str(i) for i in range(int(match[1]))),
        device_name=name,
        device_bytes=_bytes_of(name, text),
    )


def _bytes_of(name: str, text: str) -> int:
    wanted = _plain(name)
    for known, gigabytes in KNOWN.items():
        if _plain(known) == wanted:
            return gigabytes * GIGABYTE
    if size := re.fullmatch(r"(\d+)GB", wanted):
        return int(size[1]) * GIGABYTE
    raise InputError(f"--gpus {text}: {name} is not known; give one of {', '.join(KNOWN)}, or its memory, as in 8x80GB")


def _plain(name: str) -> str:
    """Return a name without what people write differently: `RTX 4090`, `rtx-4090`."""
    return re.sub(r"[\s_-]", "", name).upper()
