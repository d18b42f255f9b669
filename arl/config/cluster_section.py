"""Define the recipe's section about the machines of a run."""

import re
from collections.abc import Mapping
from typing import Self

from pydantic import Field, model_validator

from arl.config.section import Environment, FilePath, Positive, Section

OF_ARL = {  # flags of sbatch that arl gives itself, and what to do instead
    "nodes": "give cluster.nodes, or --nodes",
    "array": "each task of an array would train the same run; start several runs, or a sweep",
    "output": "the output goes to job.log beside the job's script, where a requeued job goes on with it",
    "error": "the output goes to job.log beside the job's script, where a requeued job goes on with it",
}
SIGNAL = "B:TERM@"  # begins the only signal that ends a run with a checkpoint: SIGTERM, to the script alone


class Cluster(Section):
    """Say on how many machines a run takes place, and how they are reached."""

    nodes: Positive = 1
    """Machines, the controller's included. More than one needs a launcher for several: slurm, ray."""
    min_nodes: Positive | None = None
    """Fewest machines with which the run starts or goes on. null: `nodes`."""
    interface: FilePath | None = None
    """Network interface to listen on, such as eth0. null: that of the machine's name; loopback with launcher local."""
    flags: Environment = Field(default_factory=dict)
    """Flags of sbatch without dashes, as in `{partition: gpu, time: "04:00:00"}`."""
    address: str = "auto"
    """Address of a Ray cluster, as `ray.init` takes it."""

    @model_validator(mode="after")
    def _without_contradictions(self) -> Self:
        _check_sbatch_flags(self.flags)
        if self.min_nodes is not None and self.min_nodes > self.nodes:
            raise ValueError(f"cluster.min_nodes {self.min_nodes}: must not be more than cluster.nodes {self.nodes}")
        return self

    @property
    def fewest_nodes(self) -> int:
        """Return the least number of machines with which the run starts."""
        return self.nodes if self.min_nodes is None else self.min_nodes


def _check_sbatch_flags(flags: Mapping[str, str]) -> None:
    for name, value in flags.items():
        field = f"cluster.flags.{name}"
        if not re.fullmatch(r"\w[\w-]*", name) or len(value.splitlines()) > 1:  # would begin a line of the script
            raise ValueError(f"{field} {value!r}: a flag is one word without its dashes, and its value one line")
        if name in OF_ARL:
            raise ValueError(f"{field} {value!r}: arl gives this flag itself ({OF_ARL[name]}); leave it out")
        if name == "signal" and not re.fullmatch(rf"{SIGNAL}\d+", value):
            raise ValueError(
                f"{field} {value!r}: only SIGTERM to the script ends the run with a checkpoint; give {SIGNAL}SECONDS, "
                f"as in {SIGNAL}900"
            )
