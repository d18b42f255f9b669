"""Divide the cores and devices of this machine between commands that run side by side.

visible cores, visible devices ─► divide ─► Share of each ─► its environment, which arl.launch.child applies
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from arl.errors import InputError
from arl.launch.child import CORES
from arl.launch.devices import VISIBLE_DEVICES


@dataclass(frozen=True)
class Share:
    """Hold what one of several commands may use.

    Args:
        cores: numbers of CPU cores; empty: all that this process may use.
        devices: GPUs, as CUDA_VISIBLE_DEVICES names them; empty: there are none to divide.
    """

    cores: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the variables that keep a command to its share."""
        cores = {CORES: ",".join(map(str, self.cores))} if self.cores else {}
        devices = {VISIBLE_DEVICES: ",".join(self.devices)} if self.devices else {}
        return {**cores, **devices}


def divide(jobs: int, cores: Sequence[int], devices: Sequence[str] = ()) -> list[Share]:
    """Divide cores and devices between `jobs` commands.

    Each command gets equally many cores, and those that are left over stay idle, because the number of cores decides
    how fast a run is, and the weights of a tiny model's warm-up. With more commands than cores, several commands share
    a core. A device belongs to one command; all of them are used.

    Raises:
        InputError: there are devices, but fewer than commands.
    """
    if devices and jobs > len(devices):
        raise InputError(
            f"--jobs {jobs}: each run needs a GPU of its own, and {len(devices)} are visible; give --jobs "
            f"{len(devices)}, or CUDA_VISIBLE_DEVICES= for the CPU"
        )
    cores_each = max(len(cores) // jobs, 1)
    shares = []
    for job in range(jobs):
        first = job * cores_each % len(cores)
        own_devices = devices[len(devices) * job // jobs : len(devices) * (job + 1) // jobs]  # neighbors
        shares.append(Share(tuple(cores[first : first + cores_each]), tuple(own_devices)))
    return shares
