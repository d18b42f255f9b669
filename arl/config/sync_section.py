"""Define the recipe's section about weights on their way from the trainer to the engines."""

from collections.abc import Collection
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

    def refuse_impossible(
        self,
        *,
        backend: str,
        backend_transports: Collection[Transport],
        one_process: bool,
        tensor_parallel: int,
        has_lag: bool,
    ) -> None:
        """Refuse settings that no device could make possible, or give a meaning.

        Args:
            backend: name of the engine's backend, for messages.
            backend_transports: the ways by which that backend can take weights.
            one_process: engines generate in the trainer's process.
            tensor_parallel: GPUs of one engine.
            has_lag: the recipe sets rollout.lag.

        Raises:
            ValueError: the rule that is broken, and the remedy.
        """
        if self.check and tensor_parallel > 1:
            raise ValueError(
                f"sync.check true: weights are compared whole, and engine.tensor_parallel {tensor_parallel} divides "
                "them; leave it out, or use tensor_parallel 1"
            )
        if self.transport == "auto":
            return
        named = f"sync.transport {self.transport}"
        is_sent = self.transport in ("broadcast", "ipc")
        if self.transport not in backend_transports:
            can = ", ".join(sorted(backend_transports))
            raise ValueError(f"{named}: the backend {backend} takes weights by {can}; use auto, or one of these")
        if self.transport == "memory" and not one_process:
            raise ValueError(f"{named}: in this world engines are processes of their own; use auto")
        if is_sent and one_process:
            raise ValueError(f"{named}: in this world engines are in the trainer's process; use memory or file")
        if is_sent and has_lag:
            raise ValueError(f"{named}: with rollout.lag checkpoints copy the files that engines load; use file")
