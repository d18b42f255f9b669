"""Gather sharded weights in the dtype that is published, bucket by bucket, into flat memory.

float32 shards ─► cast, one after the other: this rank's pack ─► one collective for a bucket ─► packs of all ranks
packs ─► rows to their places ─► the flat bucket

FSDP2 cuts a parameter into blocks of whole rows. So a shard is contiguous in the whole tensor too, and a bucket is put
together by copies of contiguous bytes. Ranks may hold different numbers of rows, or none.

Memory beside the flat buckets, while a bucket is gathered: one pack, and on ranks that receive the packs of all ranks.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from arl.models.load import DTYPES
from arl.models.weights import rows_of_part, shard_axis
from arl.sync.buckets import TensorSpec
from arl.sync.loading import unflatten

Bucket = Sequence[TensorSpec]


class ShardGroup(NamedTuple):
    """Name the ranks that together hold one copy of the weights, each a part of every parameter."""

    parts: int  # number of these ranks
    part: int  # this rank's number among them
    has_rank_0: bool  # of all ranks
    group: dist.ProcessGroup | None  # None: this rank holds all of the weights


def shard_group(parameter: Tensor) -> ShardGroup:
    """Return the ranks that share the parameters of a model, one of which is `parameter`."""
    assert isinstance(parameter, DTensor), "FSDP2 shards every parameter"
    mesh = parameter.device_mesh
    axis = shard_axis(parameter)
    parts = mesh.size(axis)
    group = mesh.get_group(axis) if parts > 1 else None
    is_first_copy = dist.get_rank() < parts  # ranks of one copy have consecutive numbers
    return ShardGroup(parts, mesh.get_local_rank(axis), is_first_copy, group)


def gather_buckets(
    shards: Mapping[str, Tensor],
    buckets: Sequence[Bucket],
    flats: Sequence[Tensor] | None,
    group: ShardGroup,
    everywhere: bool = False,
) -> None:
    """Write the whole tensors of every bucket into `flats`, cast. Collective.

    Args:
        shards: name -> this rank's part of each parameter, float32, on its device.
        buckets: names, published dtypes and shapes; all of one dtype.
        flats: memory of each bucket, (bytes of the bucket,) uint8, on a CPU or on this rank's device. None: this rank
            keeps nothing.
        everywhere: every rank may keep the buckets; otherwise rank 0 alone.
    """
    if not everywhere or group.group is None:
        shares = [buckets, *[()] * (group.parts - 1)]
        collect_share(shards, shares, flats or (), group)
        return
    device = next(iter(shards.values())).device
    for number, bucket in enumerate(buckets):
        pack = torch.empty(pack_bytes(bucket, group.parts), dtype=torch.uint8, device=device)
        fill_pack(shards, bucket, group.parts, group.part, pack)
        packs = pack.new_empty(group.parts, len(pack))
        dist.all_gather_into_tensor(packs.view(-1), pack, group=group.group)
        if flats is not None:
            unpack(packs, bucket, flats[number])


def pack_bytes(bucket: Bucket, parts: int) -> int:
    """Return the bytes of the largest pack, which is that of part 0."""
    return max((in_pack.stop for _, in_pack, _ in _pieces(bucket, parts, 0)), default=0)


def fill_pack(shards: Mapping[str, Tensor], bucket: Bucket, parts: int, part: int, pack: Tensor) -> None:
    """Cast the shards of `part` into `pack`, (pack_bytes,) uint8, in the bucket's order; leave its rest as it is."""
    for spec, in_pack, _ in _pieces(bucket, parts, part):
        pack[in_pack].view(DTYPES[spec.dtype]).copy_(shards[spec.name].reshape(-1))


def unpack(packs: Tensor, bucket: Bucket, flat: Tensor) -> None:
    """Copy the packs of all parts, (parts, pack_bytes) uint8, to their places in `flat`, (bytes,) uint8."""
    parts = len(packs)
    for part in range(parts):
        for _, in_pack, in_flat in _pieces(bucket, parts, part):
            flat[in_flat].copy_(packs[part, in_pack], non_blocking=True)


def _pieces(bucket: Bucket, parts: int, part: int) -> Iterator[tuple[TensorSpec, slice, slice]]:
    """Yield each tensor of which `part` has rows, and their bytes in its pack and in the flat bucket."""
    in_pack = 0
    in_flat = 0
    for spec in bucket:
        num_rows = spec.shape[0]
        row_bytes = spec.num_bytes // num_rows
        first, end = rows_of_part(num_rows, parts, part)
        size = (end - first) * row_bytes
        begin = in_flat + first * row_bytes
        if size:
            yield spec, slice(in_pack, in_pack + size), slice(begin, begin + size)
        in_pack += size
        in_flat += spec.num_bytes


def deal(specs: Sequence[TensorSpec], parts: int) -> list[list[TensorSpec]]:
    """Divide `specs` among `parts` ranks by bytes; each share keeps their order, and may be empty.

    No share has more than the fair share and the largest tensor together (Graham 1969).

    >>> specs = [TensorSpec(str(i), "float32", (size,)) for i, size in enumerate((3, 9, 5, 2))]
    >>> [[spec.name for spec in share] for share in deal(specs, 2)]
    [['1'], ['0', '2', '3']]
    """
    bytes_of = [0] * parts
    owners: dict[str, int] = {}
    for spec in sorted(specs, key=lambda spec: spec.num_bytes, reverse=True):
        owner = bytes_of.index(min(bytes_of))
        owners[spec.name] = owner
        bytes_of[owner] += spec.num_bytes
    return [[spec for spec in specs if owners[spec.name] == part] for part in range(parts)]


def collect_share(
    shards: Mapping[str, Tensor],
    shares: Sequence[Sequence[Bucket]],
    flats: Sequence[Tensor],
    group: ShardGroup,
) -> None:
    """Write the whole tensors of this rank's share into `flats`. Collective among the ranks of the first copy.

    Each rank sends every other one its rows of that one's bucket.

    Args:
        shards: name -> this rank's part of each parameter, float32, on its device.
        shares: the buckets of each rank of `group`; all of one dtype.
        flats: memory of each bucket of this rank, (bytes of the bucket,) uint8, on a CPU or on this rank's device.
    """
    if group.group is None:
        for bucket, flat in zip(shares[0], flats, strict=False):  # no flats, if this rank keeps nothing
            for name, view in unflatten(flat, bucket).items():
                view.copy_(shards[name], non_blocking=True)
        return
    if not group.has_rank_0:
        return
    device = next(iter(shards.values())).device
    for number, buckets in enumerate(itertools.zip_longest(*shares, fillvalue=())):
        sizes = [pack_bytes(bucket, group.parts) for bucket in buckets]
        sent = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
        for bucket, pack in zip(buckets, torch.split(sent, sizes), strict=True):
            fill_pack(shards, bucket, group.parts, group.part, pack)
        own_size = sizes[group.part]
        received = torch.empty((group.parts, own_size), dtype=torch.uint8, device=device)
        dist.all_to_all_single(received.view(-1), sent, [own_size] * group.parts, sizes, group=group.group)
        if own_size:
            unpack(received, buckets[group.part], flats[number])
