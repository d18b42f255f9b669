"""Find pairs of GPUs that cannot read each other's memory, as nvidia-smi reports it. Nothing here touches CUDA.

NCCL asks the driver the same question (NVML's P2P status) before it chooses how two GPUs exchange data.
"""

import re
from collections.abc import Collection
from itertools import combinations

from arl.launch.gpu_devices import run_nvidia_smi

PEERS = "OK"


def pairs_without_access(numbers: Collection[int]) -> list[tuple[int, int]] | None:
    """Return the pairs of GPUs, by nvidia-smi's numbers, that have no peer access.

    Args:
        numbers: of the GPUs to look at.

    Returns:
        The pairs, in order; None: nvidia-smi does not say.
    """
    output = run_nvidia_smi("topo", "-p2p", "r")
    if output is None:
        return None
    states = read_matrix(output)
    wanted = list(combinations(sorted(numbers), 2))
    if any(pair not in states for pair in wanted):
        return None
    return [pair for pair in wanted if states[pair] != PEERS]


def read_matrix(output: str) -> dict[tuple[int, int], str]:
    """Read the matrix of `nvidia-smi topo -p2p r`: (GPU, other GPU) ─► its state, OK or the reason why not.

    >>> read_matrix(" \\tGPU0\\tGPU1\\n GPU0\\tX\\tOK\\n GPU1\\tCNS\\tX\\n")[1, 0]
    'CNS'
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", output)  # the head of the table is underlined
    rows = [line.split() for line in plain.splitlines() if line.strip().startswith("GPU")]
    if not rows:
        return {}
    head, *body = rows
    states = {}
    for row in body:
        for other, state in zip(head, row[1:], strict=False):
            states[_number(row[0]), _number(other)] = state
    return states


def _number(name: str) -> int:
    return int(name.removeprefix("GPU"))
