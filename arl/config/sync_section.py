"""The recipe's section about weights on their way from the trainer to the engines."""

from typing import Literal

from arl.config.section import Positive, Section
from arl.types import Transport


class Sync(Section):
    """How new weights reach the engines."""

    transport: Literal["auto"] | Transport = "auto"
    """file: safetensors on a memory-backed file system; broadcast: NCCL, or gloo without GPUs, to a process group of
    each engine; ipc: handles of shared memory, for SGLang on the trainer's GPU; memory: the tensors themselves, in
    virtual time. auto: what suits the devices; see arl.sync.choose."""
    bucket_megabytes: Positive = 512
    """broadcast, ipc: bytes that travel together, in units of 10^6; a larger tensor travels alone."""
    check: bool = False
    """After each swap compare every weight of the engine with the trainer's, by checksum; `arl train --check-weights`
    sets it. One GPU an engine."""

    @property
    def bucket_bytes(self) -> int:
        return self.bucket_megabytes * 10**6

    def refuse_impossible(
        self, world: str, one_process: bool, engine: str, tensor_parallel: int, has_lag: bool
    ) -> None:
        """Raises ValueError: nothing could carry the weights, or check them."""
        sent = self.transport in ("broadcast", "ipc")
        named = f"sync.transport {self.transport}"
        if self.transport == "memory" and not one_process:
            raise ValueError(f"{named}: in world {world} engines are other processes; use auto")
        if sent and one_process:
            raise ValueError(f"{named}: world {world} has one process, and nothing to send to; use memory or file")
        if sent and has_lag:
            raise ValueError(f"{named}: with rollout.lag checkpoints keep the files that engines serve; use file")
        if self.transport == "ipc" and (engine != "sglang" or tensor_parallel > 1):
            given = f"engine.kind {engine} with tensor_parallel {tensor_parallel}"
            raise ValueError(f"{named}: for SGLang with tensor_parallel 1, and this is {given}; use file")
        if self.check and tensor_parallel > 1:
            raise ValueError(
                f"sync.check true: weights are compared whole, and tensor_parallel {tensor_parallel} divides them; "
                "leave it out, or use tensor_parallel 1"
            )
