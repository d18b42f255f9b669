"""Turn what a launcher grants a process into the environment variables that keep the process to it."""

from arl.config.cluster_section import Cluster
from arl.launch.address import PORTS
from arl.launch.base import Resources
from arl.launch.child import NICENESS
from arl.launch.devices import VISIBLE_DEVICES

# Threads that wait for each other must not burn the cores that the processes share.
PASSIVE_WAITS = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}


def granted_environment(resources: Resources) -> dict[str, str]:
    """Return the variables that limit a process to its threads, devices and priority."""
    return {
        **PASSIVE_WAITS,
        "OMP_NUM_THREADS": str(resources.threads),
        VISIBLE_DEVICES: ",".join(resources.devices),
        NICENESS: str(resources.niceness),
        "PYTHONUNBUFFERED": "1",  # its output must reach the log at once
    }


def port_environment(cluster: Cluster) -> dict[str, str]:
    """Return the variable that limits a process to the ports of the recipe, if it names some."""
    return {} if cluster.ports is None else {PORTS: cluster.ports}
