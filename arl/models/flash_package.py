"""Look for the package of flash attention 3. Torch-free."""

import importlib.util

FLASH_3 = "flash_attn_interface"


def has_flash_3() -> bool:
    """Return whether this interpreter has the package. Imports nothing."""
    return importlib.util.find_spec(FLASH_3) is not None
