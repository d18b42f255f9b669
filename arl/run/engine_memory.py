"""Derive the bytes of one engine replica on each of its devices. Torch-free.

SGLang          a share of the memory that it finds free at its start goes to weights and cache; graphs and activations
                live in the rest: arg_groups/memory_hook.py and kv_cache_configurator.py of SGLang 0.5.20
our own engine  every slot grows with the longest open request, to the next power of two
"""

import argparse
from collections.abc import Sequence

from msgspec import Struct

from arl.config.engine_section import EngineConfig
from arl.data.model_limits import ModelShape
from arl.sync.buckets import ITEM_BYTES

MEBIBYTE = 1 << 20
LEAST_CAPACITY = 64  # tokens of a slot: see arl.models.slot_cache
# Memory of a device in MiB, below which SGLang prefills so many tokens at once; and without a limit.
CHUNKS = {20 * 1024: 2048, 60 * 1024: 4096, 160 * 1024: 8192}
LARGEST_CHUNK = 16_384
PREFILL_GRAPHS = 60 * 8  # MiB: SGLang captures about 60 lengths, and counts 8 MiB for each
DECODE_GRAPH = 2  # MiB for each request of the largest captured batch
LARGE_DEVICE = 60 * 1024  # MiB, beyond which SGLang leaves at least 10 GiB
LEAST_REST = 10 * 1024


class EngineBytes(Struct, frozen=True):
    """Hold what one engine takes of each of its devices."""

    weights: int
    per_token: int  # of its cache
    rest: int  # of what was free at its start: graphs, activations, and what is allocated later beside it
    graphs: int  # the part of the rest that stays when it releases its memory


def engine_bytes(
    config: EngineConfig, shape: ModelShape, parameters: int, free: int | None, share: float | None = None
) -> EngineBytes:
    """Return the bytes of one engine; `config.dtype` is not auto.

    Args:
        parameters: of the model.
        free: bytes that are free on the device when it starts; None: it computes on the CPU.
        share: of them that the run lets it take for weights and cache; None: it decides. `config.args` override it.
    """
    item = ITEM_BYTES[config.dtype]
    width = config.tensor_parallel
    heads = max(shape.kv_heads // width, 1)
    is_sglang = config.kind == "sglang" and free is not None
    return EngineBytes(
        weights=item * parameters // width,
        per_token=2 * item * shape.layers * heads * shape.head_dim,
        rest=sglang_rest(config, free, share) if is_sglang and free is not None else 0,
        graphs=_graphs(config) if is_sglang else 0,
    )


def grown_capacity(longest: int, context: int) -> int:
    """Return the tokens of each slot of our own engine, once a request of `longest` tokens was open.

    >>> grown_capacity(1100, 4096), grown_capacity(1100, 1500)
    (2048, 1500)
    """
    capacity = LEAST_CAPACITY
    while capacity < longest:
        capacity *= 2
    return max(min(capacity, context), longest)


def sglang_rest(config: EngineConfig, free: int, share: float | None) -> int:
    """Return what SGLang leaves of `free`: of its share, which engine.args give first, or as it would choose."""
    given = given_share(config.args)
    chosen = share if given is None else given
    if chosen is not None:
        return int(free * (1 - chosen))
    mebibytes = free / MEBIBYTE
    limits = [chunk for limit, chunk in CHUNKS.items() if mebibytes < limit]
    chunk = limits[0] if limits else LARGEST_CHUNK
    rest = 512 + 1.5 * chunk + config.tensor_parallel * 128 + _graphs(config) / MEBIBYTE
    if mebibytes > LARGE_DEVICE:
        rest = max(rest, LEAST_REST)
    return int(rest * MEBIBYTE)


def given_share(args: Sequence[str]) -> float | None:
    """Return the value of `--mem-fraction-static` among SGLang's flags; None: it is not given, or no number."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--mem-fraction-static", type=float)
    try:
        known, _ = parser.parse_known_args(list(args))
    except argparse.ArgumentError:  # SGLang refuses it with a better message
        return None
    share: float | None = known.mem_fraction_static
    return share


def _graphs(config: EngineConfig) -> int:
    return (DECODE_GRAPH * config.slots + PREFILL_GRAPHS) * MEBIBYTE
