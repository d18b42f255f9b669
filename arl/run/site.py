"""Know the nodes on which a run is placed, and place it there."""

from collections.abc import Sequence

from msgspec import Struct

from arl.config.recipe import Recipe
from arl.errors import InputError
from arl.launch.base import Node
from arl.launch.launchers import make_launcher
from arl.launch.placement import Placement, place
from arl.metrics.run_files import LOGS
from arl.sync.choose import choose_transport
from arl.types import Transport


class Site(Struct, frozen=True):
    """Hold where a run is placed.

    Args:
        nodes: of the launcher, the controller's first.
        shares_files: processes on all nodes see the run's directory.
        is_here: the nodes exist; otherwise the run is only planned for them.
    """

    nodes: tuple[Node, ...]
    shares_files: bool
    is_here: bool

    @classmethod
    def of(cls, recipe: Recipe, named: Sequence[Node] | None) -> "Site":
        """Take the launcher's nodes, or those that are planned for."""
        if named is not None:
            return cls(tuple(named), shares_files=True, is_here=False)
        launcher = make_launcher(recipe, recipe.run_directory / LOGS)
        return cls(tuple(launcher.nodes), launcher.shares_files, is_here=True)

    def place(self, recipe: Recipe) -> tuple[Placement, Transport]:
        """Divide the nodes between the processes, and choose how weights travel.

        Raises:
            InputError: devices are missing, or no transport serves.
        """
        placement = place(recipe, self.nodes)
        if placement.spans_nodes and not self.shares_files:
            raise InputError(
                f"launcher {recipe.launcher}: its nodes have no file system in common (shares_files), and a run keeps "
                "checkpoints and the weights that it begins with in files; give output.directory a path that all nodes "
                "share, or use one node"
            )
        transport = choose_transport(
            recipe,
            backend_transports=set(recipe.engine.capabilities.transports),
            one_process=recipe.world_traits.one_process,
            on_gpus=placement.on_gpus,
            shares_files=self.shares_files,
            shares_memory=not placement.spans_nodes,
        )
        return placement, transport
