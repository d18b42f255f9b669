"""Derive the bytes of published weights, on the trainer's devices and on the host, by transport. Torch-free.

arl.sync.published_versions ─► how many versions each transport holds, and where ─► bytes
"""

from msgspec import Struct

from arl.config.recipe import Recipe
from arl.sync.published_versions import buffer_place, held_versions, published_bytes
from arl.types import Transport


class PublicationBytes(Struct, frozen=True):
    """Hold what versions take, in bytes."""

    on_device: int  # of rank 0; with ipc, of every rank whose device an engine uses
    on_host: int  # of rank 0's process, and in shared memory


def publication_bytes(
    recipe: Recipe, transport: Transport, parameters: int, kept: int, free: int | None
) -> PublicationBytes:
    """Return the bytes of all versions that live at once.

    Args:
        parameters: of the model.
        kept: versions that engines may still load: see kept_versions.
        free: bytes of rank 0's device when weights and moments are loaded; None: the ranks have no devices.
    """
    version = published_bytes(parameters, recipe.train.dtype)
    place = "host" if free is None else buffer_place(recipe.sync.buffers, version, free)
    held = held_versions(transport, kept, place, on_gpus=free is not None)
    return PublicationBytes(
        on_device=held.on_device * version,
        on_host=(held.on_host + held.in_files) * version,
    )
