"""Deal the weights to the ranks, so that each writes whole tensors, and send every rank what it is to write.

parameters ─► deal: the largest first, each to the rank with the fewest bytes ─► a share of every rank, in buckets
shards ─► one all-to-all for a round, which is a bucket of every rank ─► whole tensors, on the rank that writes them

Every rank receives at the same time, so a round takes as long as its largest bucket. Memory on the device, while a
round is exchanged: what this rank sends, which is about a bucket, and what it receives.
"""

import itertools
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from arl.sync.buckets import TensorSpec
from arl.train.gathering import Bucket, ShardGroup, fill_pack, gather_buckets, pack_bytes, unpack


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

    Args:
        shards: name -> this rank's part of each parameter, float32, on its device.
        shares: the buckets of each rank of `group`; all of one dtype.
        flats: memory of each bucket of this rank, (bytes of the bucket,) uint8, on a CPU or on this rank's device.
    """
    if group.group is None:
        gather_buckets(shards, shares[0], flats, group)
        return
    if not group.has_rank_0:
        return
    for number, one_of_each in enumerate(itertools.zip_longest(*shares, fillvalue=())):
        flat = flats[number] if number < len(flats) else None
        _exchange(shards, one_of_each, flat, group, group.group)


def _exchange(
    shards: Mapping[str, Tensor],
    buckets: Sequence[Bucket],
    flat: Tensor | None,
    group: ShardGroup,
    process_group: dist.ProcessGroup,
) -> None:
    """Send every rank this rank's rows of its bucket, and put the rows that are received into `flat`."""
    device = next(iter(shards.values())).device
    sizes = [pack_bytes(bucket, group.parts) for bucket in buckets]
    sent = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
    for bucket, pack in zip(buckets, torch.split(sent, sizes), strict=True):
        fill_pack(shards, bucket, group.parts, group.part, pack)
    own_size = sizes[group.part]
    received = torch.empty((group.parts, own_size), dtype=torch.uint8, device=device)
    dist.all_to_all_single(
        received.view(-1),
        sent,
        output_split_sizes=[own_size] * group.parts,
        input_split_sizes=sizes,
        group=process_group,
    )
    if flat is not None:
        unpack(received, buckets[group.part], flat)
