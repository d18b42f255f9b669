"""Ask torch what kind of GPUs this process may use, and how much memory they have."""


def smallest_device() -> tuple[str, int] | None:
    """Return name and bytes of the visible GPU with the least memory; None: there is no GPU."""
    import torch  # importing it takes a second, so only this path does

    found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    if not found:
        return None
    smallest = min(found, key=lambda device: device.total_memory)
    return smallest.name, int(smallest.total_memory)
