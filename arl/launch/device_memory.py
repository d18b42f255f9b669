"""Find the name and the memory of the GPUs that a node lends. Nothing here touches CUDA.

The controller must hold no CUDA context, so nvidia-smi is asked. It does not list MIG devices.
"""

from collections.abc import Sequence

from arl.launch.gpu_devices import find_gpus, named_gpus


def smallest_device(names: Sequence[str]) -> tuple[str, int] | None:
    """Return name and bytes of the GPU with the least memory among `names`; None: nvidia-smi knows that of none.

    Args:
        names: as CUDA_VISIBLE_DEVICES gives them.
    """
    found = named_gpus(find_gpus() or (), names)
    known = [gpu for gpu in found if gpu.total_bytes]
    if not known:
        return None
    smallest = min(known, key=lambda gpu: gpu.total_bytes)
    return smallest.name, smallest.total_bytes
