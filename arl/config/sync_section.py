"""Define the recipe's section about weights on their way from the trainer to the engines."""

from typing import Literal

from arl.config.section import Positive, Section
from arl.types import Transport


class Sync(Section):
    """Say how new weights reach the engines."""

    transport: Literal["auto"] | Transport = "auto"
    """file: safetensors on a memory-backed file system, with several nodes in the run directory. broadcast: to one
    process group of all engines, by NCCL, or by gloo without GPUs. ipc: handles of shared memory, for engines on the
    trainer's GPUs. memory: the tensors, for engines in the trainer's process. auto: the one that suits the devices; see
    arl.sync.choose."""
    bucket_megabytes: Positive = 512
    """broadcast, ipc: size of a bucket, whose tensors travel together, in units of 10^6 bytes. A larger tensor travels
    alone."""
    interrupt: bool = True
    """true: engines load new weights while episodes generate, which go on with the new weights. false: episodes end
    first and no new one begins meanwhile, so that no episode spans two versions."""
    check: bool = False
    """After each swap, compare every weight of the engine with the trainer's, by checksum; `arl train --check-weights`
    sets it. Only for engines on one GPU each."""

    @property
    def bucket_bytes(self) -> int:
        """Return the size of a bucket in bytes."""
        return self.bucket_megabytes * 10**6
