"""Derive the bytes of published weights, on the trainer's devices and on the host, by transport. Torch-free.

transport    where versions lie                                       how many
broadcast    flat buckets on rank 0's device, or its host memory      2: one is sent, the next one is gathered
ipc          flat buckets that an engine on the same device maps      those that engines may still load
file         files in shared memory, and a snapshot before them       those that engines may still load, and 2
memory       tensors in the only process                              those that engines may still load, and 2
"""

from msgspec import Struct

from arl.types import Transport

SENT_VERSIONS = 2  # by broadcast
WAITING_VERSIONS = 2  # one is written, and one waits for that


class PublicationBytes(Struct, frozen=True):
    """Hold what versions take, in bytes."""

    on_device: int  # of rank 0
    on_host: int


def publication_bytes(transport: Transport, version: int, kept: int, on_gpus: bool) -> PublicationBytes:
    """Return the bytes of all versions that live at once.

    Args:
        version: bytes of one version, in the dtype in which it is published.
        kept: versions that engines may still load: see arl.sync.published_versions.
    """
    if transport == "broadcast":
        held = SENT_VERSIONS * version
    elif transport == "ipc":
        held = kept * version
    else:
        return PublicationBytes(on_device=0, on_host=(kept + WAITING_VERSIONS) * version)
    return PublicationBytes(on_device=held, on_host=0) if on_gpus else PublicationBytes(on_device=0, on_host=held)
