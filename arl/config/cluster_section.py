"""Define the recipe's section about the machines of a run."""

from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from arl.config.environment import Environment
from arl.config.ports import port_range
from arl.config.sbatch_flags import check_sbatch_flags
from arl.config.section import FilePath, Processes, Section
from arl.errors import InputError


class Cluster(Section):
    """Say on how many machines a run takes place, and how they are reached. Its launcher is named by `launcher`."""

    nodes: Processes = 1
    """Machines, the controller's included. More than one needs a launcher that starts processes on them: slurm, ray."""
    min_nodes: Processes | None = None
    """The run also starts, or goes on, with fewer machines than `nodes`, but at least so many. null: `nodes`."""
    interface: FilePath | None = None
    """Network interface on which processes listen on every machine, as in eth0. null: the one to which the machine's
    own name resolves; with launcher local, loopback."""
    ports: str | None = None
    """Ports on which processes listen, as in 20000-20999, for firewalls. gloo and NCCL choose theirs by themselves.
    null: any free ones."""
    flags: Environment = Field(default_factory=dict)
    """Flags of sbatch without their dashes, as in `{partition: gpu, time: "04:00:00", gpus-per-node: 8}`."""
    controller_flags: Environment = Field(default_factory=dict)
    """Flags of sbatch for the controller's node alone, beside and before `flags`, as in `{partition: cpu,
    gpus-per-node: 0}`. The job then has two components, the first of one node (a heterogeneous job)."""
    address: str = "auto"
    """Of a Ray cluster, as `ray.init` takes it."""

    @field_validator("ports", mode="before")
    @classmethod
    def _readable(cls, ports: Any) -> Any:
        if ports is not None:
            try:
                port_range(str(ports))
            except InputError as error:
                raise ValueError(str(error)) from error
        return ports

    @model_validator(mode="after")
    def _without_contradictions(self) -> Self:
        check_sbatch_flags("cluster.flags", self.flags)
        check_sbatch_flags("cluster.controller_flags", self.controller_flags)
        return self

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.min_nodes is not None and self.min_nodes > self.nodes:
            raise ValueError(f"cluster.min_nodes {self.min_nodes}: must not be more than cluster.nodes {self.nodes}")
        if self.controller_flags and self.fewest_nodes == 1:
            raise ValueError("cluster.controller_flags: they give the controller a node of its own; set cluster.nodes")
        return self

    @property
    def fewest_nodes(self) -> int:
        """Return the least number of machines with which the run starts."""
        return self.nodes if self.min_nodes is None else self.min_nodes
