"""Divide the memory of a GPU that an engine and a trainer rank share (mode collocated).

Both sides start at once. SGLang sizes its cache so that, of what was free when it began, the share 1 - f stays free
(`_profile_available_bytes` in mem_cache/kv_cache_configurator.py, 0.5.20), with f from 0.83 to 0.9 unless it is given.
Whatever the rank allocates afterwards has to fit into the rest, AdamW's moments above all, which begin with the first
step. So f is given, as a share of the whole device: the rank's bytes and a reserve are left out. It is then safe
whichever side allocates first, because a rank that already holds memory lowers what f is a share of.
"""

# Of the device: contexts and NCCL buffers of two processes, SGLang's activations and graphs. It keeps 10 to 12 GB of an
# 80 GB device for the latter (arg_groups/memory_hook.py).
RESERVE = 0.15
LEAST_SHARE = 0.05  # an engine without any cache would not start; SGLang then says how much it lacks


def engine_share(device_bytes: int, rank_bytes: int) -> float:
    """Return the fraction of a GPU that the weights and the cache of an engine may take.

    Args:
        device_bytes: memory of the device.
        rank_bytes: what the trainer's rank holds there while the engine generates: weights, moments and published
            versions.

    >>> engine_share(80_000_000_000, 20_000_000_000)
    0.6
    """
    share = 1 - RESERVE - rank_bytes / device_bytes
    return max(round(share, 3), LEAST_SHARE)
