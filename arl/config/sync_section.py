"""Define the recipe's section about weights on their way from the trainer to the engines."""

from collections.abc import Collection
from typing import Literal

from arl.config.section import Positive, Section
from arl.types import Transport

DEVICE_BUFFERS = "sync.buffers device: only transport broadcast between GPUs keeps versions there"


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
    buffers: Literal["auto", "device", "host"] = "auto"
    """broadcast, with a GPU: where the trainer's rank 0 keeps two versions. device: on its GPU. host: in pinned memory,
    from which each broadcast copies. auto: on the GPU if they take at most half of what is free there when the model
    and its optimizer are loaded."""
    order: Literal["together", "in_turn"] = "together"
    """together: all engines load a new version at the same time; a broadcast is sent once. in_turn: one after the
    other, so that the others generate meanwhile; a broadcast is sent to each of them, and the version counts as loaded
    when the last engine has it."""
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
        collocated: bool,
        replicas: int,
    ) -> None:
        """Refuse settings that no device could make possible, or give a meaning.

        Args:
            backend: name of the engine's backend, for messages.
            backend_transports: the ways by which that backend can take weights.
            one_process: engines generate in the trainer's process.
            tensor_parallel: GPUs of one engine.
            has_lag: the recipe sets rollout.lag.
            collocated: engines use the trainer's devices, and are paused during its steps.
            replicas: number of engines.

        Raises:
            ValueError: the rule that is broken, and the remedy.
        """
        self._refuse_useless_order(has_lag, collocated, replicas)
        self._refuse_useless_buffers(one_process, has_lag, collocated)
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

    def _refuse_useless_order(self, has_lag: bool, collocated: bool, replicas: int) -> None:
        """Refuse to load engines in turn where nobody generates meanwhile."""
        if self.order != "in_turn":
            return
        reasons = {
            "mode collocated": collocated,
            "rollout.lag": has_lag,
            "sync.interrupt false": not self.interrupt,
        }
        stopped = [setting for setting, holds in reasons.items() if holds]
        if stopped:
            raise ValueError(
                f"sync.order in_turn: with {stopped[0]} no engine generates while another one loads, so it would only "
                "be slower; use together"
            )
        if replicas == 1:
            raise ValueError(
                "sync.order in_turn: engine.replicas 1 has no other engine that could generate meanwhile; use together"
            )

    def _refuse_useless_buffers(self, one_process: bool, has_lag: bool, collocated: bool) -> None:
        """Refuse to keep versions on a GPU where no broadcast between GPUs can be."""
        reasons = {
            f"sync.transport is {self.transport}": self.transport not in ("auto", "broadcast"),
            "engines are in the trainer's process": one_process,
            "rollout.lag takes files": has_lag,
            "mode is collocated": collocated,
        }
        others = [reason for reason, holds in reasons.items() if holds]
        if self.buffers == "device" and others:
            raise ValueError(f"{DEVICE_BUFFERS}, and {others[0]}; leave it out")
