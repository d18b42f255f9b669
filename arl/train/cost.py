"""Count what a training step costs: floating-point operations for the MFU, and the bytes that it took at most."""

import torch

from arl.data.model_limits import Flops
from arl.launch.devices import peak_resident
from arl.train.micro_batch import MicroBatch, forward_flops

# Dense FLOP/s of one device in bfloat16, and as many in float16, from NVIDIA's data sheets. The first name that is part
# of the device's counts.
PEAKS = {
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H200 NVL": 835e12,
    "H100": 989e12,
    "H200": 989e12,
    "A100": 312e12,
    "GB200": 2500e12,
    "B200": 2250e12,
}

HALVES = (torch.bfloat16, torch.float16)


def training_flops(flops: Flops, batch: MicroBatch) -> float:
    """Return the operations of a pack's forward and backward: three times its forward.

    What checkpointing computes again is not counted.
    """
    return 3 * forward_flops(batch, flops)


def peak_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    """Return the FLOP/s that the device's maker states; None where that is not known, as on a CPU."""
    if device.type != "cuda" or dtype not in HALVES:
        return None
    name = torch.cuda.get_device_name(device)
    for known, peak in PEAKS.items():
        if known in name:
            return peak
    return None


def peak_memory(device: torch.device) -> float:
    """Return the largest number of bytes so far: allocated by torch on a GPU, resident in this process on a CPU."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    return float(peak_resident())
