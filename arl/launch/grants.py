"""Turn what a launcher grants a process into the environment variables that keep the process to it."""

from collections.abc import Mapping

from arl.launch.address import LOOPBACK_INTERFACE, interface_of
from arl.launch.base import Resources
from arl.launch.devices import VISIBLE_DEVICES
from arl.launch.tls import is_loopback

# Threads that wait for each other must not burn the cores that the processes share.
PASSIVE_WAITS = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}


def granted_environment(resources: Resources) -> dict[str, str]:
    """Return the variables that limit a process to its threads and devices."""
    return {
        **PASSIVE_WAITS,
        "OMP_NUM_THREADS": str(resources.threads),
        VISIBLE_DEVICES: ",".join(resources.devices),
        "PYTHONUNBUFFERED": "1",  # its output must reach the log at once
    }


def interface_environment(address: str) -> Mapping[str, str]:
    """Return the variables by which gloo and NCCL take the interface of `address`; none if it is of no interface."""
    if is_loopback(address):
        return LOOPBACK_INTERFACE
    interface = interface_of(address)
    return {} if interface is None else dict.fromkeys(LOOPBACK_INTERFACE, interface)
