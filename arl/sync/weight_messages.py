"""Messages of SGLang's HTTP protocol that concern weights, for the server and the client alike. Torch-free.

/update_weights_from_disk          UpdateFromDisk
/init_weights_update_group         InitGroup
/destroy_weights_update_group      LeaveGroup
/update_weights_from_distributed   UpdateFromDistributed, once for each bucket
/update_weights_from_tensor        UpdateFromTensor, once for each bucket
/weights_checker                   CheckWeights ─► Checked
/release_memory_occupation         Memory
/resume_memory_occupation          Memory
"""

import re
from typing import Literal

from msgspec import Struct

MOST_VERSION = 2**31 - 1  # engines and trajectories keep the version of each token in an int32

# ipc: suffix of the file that a bucket's handles lie in; the names are in the order of the buckets
HANDLES = ".handles"
BUCKETS = "flattened_bucket"  # SGLang's load format for tensors that lie one after the other in one tensor of bytes

MemoryTag = Literal["weights", "kv_cache"]
DEFAULT_GROUP = "weight_update_group"  # SGLang's


def version_number(text: str) -> int:
    """Return the number of a version, which SGLang's protocol carries as text.

    Raises:
        ValueError: it is none that fits.
    """
    if not re.fullmatch("[0-9]{1,10}", text) or int(text) > MOST_VERSION:
        raise ValueError(f"version {text[:40]!r} must be an integer from 0 to {MOST_VERSION}, as a string")
    return int(text)


class Memory(Struct, forbid_unknown_fields=True):
    """Name the memory that a server releases, or takes again."""

    tags: list[MemoryTag] | None = None  # all of it

    @property
    def kinds(self) -> set[MemoryTag]:
        """Return what is named; every kind, if nothing is."""
        return {"weights", "kv_cache"} if self.tags is None else set(self.tags)


class UpdateFromDisk(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Load the weights of a directory."""

    model_path: str
    weight_version: str | None = None  # the server keeps the one it has
    flush_cache: bool = True
    load_format: Literal["auto", "safetensors"] | None = None


class InitGroup(Struct, forbid_unknown_fields=True):
    """Join a process group whose rank 0 is the trainer's."""

    master_address: str
    master_port: int
    rank_offset: int  # of the server's first worker
    world_size: int
    group_name: str = DEFAULT_GROUP
    backend: Literal["gloo", "nccl"] = "nccl"


class LeaveGroup(Struct, forbid_unknown_fields=True):
    """Leave a process group, and drop what was received in it without its version."""

    group_name: str = DEFAULT_GROUP


class UpdateFromDistributed(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Receive one bucket. The last one carries the version."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    group_name: str = DEFAULT_GROUP
    load_format: str | None = None
    weight_version: str | None = None
    flush_cache: bool = True


class UpdateFromTensor(Struct, omit_defaults=True):
    """Map one bucket of shared memory. Only SGLang understands it."""

    serialized_named_tensors: list[bytes]  # base64 in JSON; one for each of the server's workers
    weight_version: str | None = None
    flush_cache: bool = True


class CheckWeights(Struct, forbid_unknown_fields=True):
    """Ask for the checksums of all weights."""

    action: Literal["checksum"] = "checksum"


class Checksums(Struct):
    """Hold the checksums of one worker: name -> sha256."""

    checksums: dict[str, str]


class Checked(Struct):
    """Answer CheckWeights, with one entry for each worker."""

    ranks: list[Checksums]
