"""Define the seam for what a published version is written to, so that engines can load it.

    snapshot ─► PublicationTarget.write ─► WeightUpdate ─► engines load it ─► PublicationTarget.discard

There is one target for each transport: file_target, memory_target, broadcast_target and ipc_target.
"""

from typing import Protocol

from torch import Tensor

from arl.types import WeightUpdate

State = dict[str, Tensor]


class PublicationTarget(Protocol):
    """Keep published weights until no engine will ask for them.

    A target that keeps everything in memory is four lines (arl.sync.memory_target has the real one):

        class Kept:
            def write(self, version: int, state: State) -> WeightUpdate:
                return WeightUpdate(version, transport="memory", state=state)

            def discard(self, update: WeightUpdate) -> None:
                "The tensors are freed with their last reference."
    """

    def write(self, version: int, state: State) -> WeightUpdate:
        """Make `state` loadable under `version`; it is complete when this returns.

        Args:
            state: name -> tensor, all of one dtype. The caller does not change it afterwards.
        """

    def discard(self, update: WeightUpdate) -> None:
        """Free a version that no engine will ask for again."""
