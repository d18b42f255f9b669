"""Divide the cores and devices of this machine between commands that run side by side.

visible cores, visible devices ─► divide ─► Share of each ─► its environment, which arl.launch.child applies
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from arl.errors import InputError
from arl.launch.child import CORES
from arl.launch.devices import VISIBLE_DEVICES

T = TypeVar("T")


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
        environment = {}
        if self.cores:
            environment[CORES] = ",".join(map(str, self.cores))
        if self.devices:
            environment[VISIBLE_DEVICES] = ",".join(self.devices)
        return environment


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
        own_cores = tuple(cores[first : first + cores_each])
        own_devices = _part(devices, job, jobs)
        shares.append(Share(cores=own_cores, devices=own_devices))
    return shares


def _part(things: Sequence[T], index: int, parts: int) -> tuple[T, ...]:
    """Return part `index` of `parts`, all of which are neighbors and differ by one thing at most."""
    begin = len(things) * index // parts
    end = len(things) * (index + 1) // parts
    return tuple(things[begin:end])
