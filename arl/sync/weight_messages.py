"""Messages of SGLang's HTTP protocol that concern weights, for the server and the client alike. Torch-free.

/update_weights_from_disk          UpdateFromDisk
/init_weights_update_group         InitGroup ─► GroupJoined
/destroy_weights_update_group      LeaveGroup
/update_weights_from_distributed   UpdateFromDistributed, once for each bucket
/update_weights_from_tensor        UpdateFromTensor, once for each bucket
/weights_checker                   CheckWeights ─► Checked
/release_memory_occupation         Memory
/resume_memory_occupation          Memory
"""

from typing import Literal

from msgspec import Struct

# ipc: suffix of the file that a bucket's handles lie in; the names are in the order of the buckets
HANDLES = ".handles"
BUCKETS = "flattened_bucket"  # SGLang's load format for tensors that lie one after the other in one tensor of bytes

STAGES = "stages buckets"  # in the answer to InitGroup: see UpdateFromDistributed

MemoryTag = Literal["weights", "kv_cache"]


class Memory(Struct, forbid_unknown_fields=True):
    """Name the memory that a server releases, or takes again."""

    tags: list[MemoryTag]


class UpdateFromDisk(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Load the weights of a directory, or with the load format `node_copy` only copy it to the memory of the node."""

    model_path: str
    weight_version: str
    flush_cache: bool = True
    load_format: str | None = None


class InitGroup(Struct, forbid_unknown_fields=True):
    """Join a process group whose rank 0 is the trainer's."""

    master_address: str
    master_port: int
    rank_offset: int  # of the server's first worker
    world_size: int
    group_name: str
    backend: Literal["gloo", "nccl"]


class GroupJoined(Struct):
    """Answer InitGroup."""

    success: bool
    message: str

    @property
    def stages(self) -> bool:
        """Return whether the server keeps buckets until the version comes, and generates meanwhile."""
        return STAGES in self.message


class LeaveGroup(Struct, forbid_unknown_fields=True):
    """Leave a process group, and drop what was received in it without its version."""

    group_name: str


class UpdateFromDistributed(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Receive one bucket. The last one carries the version.

    For a server that stages, buckets carry no version. An empty one waits until all are received; with the version, it
    has them loaded.
    """

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    group_name: str
    load_format: str
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
