"""Choose the flash attention that computes a rank's packs: version 3 where it is installed and runs, else torch's own.

Version 3 is a package, flash_attn_interface, for GPUs of compute capability 9.0 (H100, H200). torch.nn.attention puts
its kernels in the place of torch's flash attention 2, in varlen_attn and in scaled_dot_product_attention. Importing
this module does not import torch.
"""

import importlib.util
from typing import TYPE_CHECKING

from arl.errors import TrainerError

if TYPE_CHECKING:
    import torch

FLASH_3 = "flash_attn_interface"
VERSION_3 = "FA3"  # torch's name of it
CAPABILITY = (9, 0)


def has_flash_3() -> bool:
    """Return whether this interpreter has the package. Imports nothing."""
    return importlib.util.find_spec(FLASH_3) is not None


def choose_flash(device: "torch.device", dtype: "torch.dtype") -> str:
    """Activate version 3 if `device` and the installed packages can run it; return the choice for the rank's log.

    The choice is for the whole process. float16 and bfloat16 alone have flash attention.

    Raises:
        TrainerError: the package of version 3 is installed and cannot be used.
    """
    import torch

    if device.type != "cuda" or dtype == torch.float32:
        return f"no flash attention for {dtype} on {device.type}"
    if torch.cuda.get_device_capability(device) != CAPABILITY:
        return "flash attention 2 of torch: version 3 is for compute capability 9.0"
    if not has_flash_3():
        return f"flash attention 2 of torch: {FLASH_3} is not installed"
    if VERSION_3 not in torch.nn.attention.list_flash_attention_impls():
        return f"flash attention 2 of torch: torch {torch.__version__} cannot use version 3"
    try:
        torch.nn.attention.activate_flash_attention_impl(VERSION_3)
    except (ImportError, OSError, RuntimeError) as error:
        raise TrainerError(
            f"{FLASH_3} is installed, and cannot be used ({error}); install it for torch {torch.__version__}, or "
            "remove it"
        ) from error
    return f"flash attention 3 of {FLASH_3}"
