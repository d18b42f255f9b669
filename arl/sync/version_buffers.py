"""Hold the flat buckets of a few versions in memory that is used again: nothing is allocated after the first versions.

    trainer    reserve(version) ─► fills the buckets
    publisher  reading(version) ─► checksums, files ─► offer(version): from now on it can be claimed
    controller claim(version)   ─► hands the version to the engines: it stays until engines are sent a newer one
    senders    lend(version)    ─► the list of its buckets: they stay as long as somebody has this list

Why two buffers are enough for a broadcast: engines are updated one version at a time, and a restarted engine is given
the version of the last update (arl.engine.router). So only the claimed version may be asked for again, and the version
claimed before it until the first engine is sent the newer one. A version that is not claimed may be overwritten,
because a claim is always answered with the newest version. Therefore `reserve` waits only if a swap, or a send to an
engine that hangs, takes longer than a training step.
"""

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from arl.errors import TrainerError
from arl.sync.buckets import TensorSpec, bucket_bytes_of
from arl.sync.choose import BufferPlace


def allocate_buckets(buckets: Sequence[Sequence[TensorSpec]], place: BufferPlace) -> list[Tensor]:
    """Return memory of exactly the size of each bucket, (bytes of the bucket,) uint8."""
    return [_allocate(bucket_bytes_of(bucket), place) for bucket in buckets]


def _allocate(num_bytes: int, place: BufferPlace) -> Tensor:
    if place == "device":
        return torch.empty(num_bytes, dtype=torch.uint8, device="cuda")
    memory = torch.empty(num_bytes, dtype=torch.uint8)
    if torch.cuda.is_available():
        _pin(memory)
    return memory


def _pin(memory: Tensor) -> None:
    """Lock the pages of `memory`, which is never freed, so that a GPU copies to and from them by itself.

    torch's own pinned memory is rounded up to a power of two: a bucket of 1.1 GB would take 2.1 GB.
    """
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    error = runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)
    torch.cuda.check_error(int(error))


def free_device_bytes() -> int:
    """Return the bytes that are free on this process's GPU, those that torch holds without need included."""
    free, _ = torch.cuda.mem_get_info()
    return free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


class LentBuckets(list[Tensor]):
    """List the buckets of a version, (bytes,) uint8 each. They are not overwritten while this list exists."""


@dataclass(eq=False)
class _Buffer:
    flats: list[Tensor]
    version: int
    waits: bool = True  # for its publication
    offered: bool = False
    claimed: bool = False
    readers: int = 0


class VersionBuffers:
    """Reserve, offer, claim and lend versions; every method may be called from any thread.

    Args:
        count: number of versions that there is memory for.
        make: allocates the buckets of one version; called at most `count` times.
        keeps_waiting: a version that waits for its publication is not overwritten, because none may be skipped.
    """

    def __init__(self, count: int, make: Callable[[], list[Tensor]], keeps_waiting: bool = False) -> None:
        self._count = count
        self._make = make
        self._keeps_waiting = keeps_waiting
        self._buffers: list[_Buffer] = []
        self._changed = threading.Condition()

    def reserve(self, version: int, seconds: float) -> list[Tensor]:
        """Return memory for the buckets of `version`; the oldest version that nobody needs is lost.

        Raises:
            TrainerError: every version was still needed after `seconds`.
        """
        with self._changed:
            if not self._changed.wait_for(self._has_room, seconds):
                needed = ", ".join(str(buffer.version) for buffer in self._buffers)
                raise TrainerError(
                    f"no buffer was free for version {version} within {seconds:g} s: engines or the publisher still "
                    f"need the versions {needed}; look at what holds up the engines, or raise deadlines.step"
                )
            if len(self._buffers) < self._count:
                buffer = _Buffer(self._make(), version)
                self._buffers.append(buffer)
                return buffer.flats
            oldest = min(self._free(), key=lambda buffer: buffer.version)
            oldest.version = version
            oldest.waits = True
            oldest.offered = False
            return oldest.flats

    @contextlib.contextmanager
    def reading(self, version: int) -> Iterator[bool]:
        """Keep `version` while the publisher reads it; yields False if a newer one has taken its place already."""
        with self._changed:
            buffer = self._find(version)
            if buffer is not None:
                buffer.readers += 1
                buffer.waits = False
        try:
            yield buffer is not None
        finally:
            if buffer is not None:
                self._end_reading(buffer)

    def offer(self, version: int) -> None:
        """Let `version`, whose buckets are filled, be claimed and lent."""
        with self._changed:
            buffer = self._find(version)
            assert buffer is not None, f"version {version} was overwritten before it was published"
            buffer.offered = True
            buffer.waits = False
            self._changed.notify_all()

    def claim(self, version: int, seconds: float) -> int:
        """Keep the newest version that is offered for engines, and return it: `version` or a newer one.

        Raises:
            TrainerError: none was offered within `seconds`.
        """

        def newest() -> _Buffer | None:
            offered = [buffer for buffer in self._buffers if buffer.offered and buffer.version >= version]
            return max(offered, key=lambda buffer: buffer.version, default=None)

        with self._changed:
            buffer = self._changed.wait_for(newest, seconds)
            if buffer is None:
                raise TrainerError(f"version {version} or a newer one was not published within {seconds:g} s")
            buffer.claimed = True
            return buffer.version

    def lend(self, version: int) -> LentBuckets:
        """Return the buckets of `version`, which engines are sent now. Versions claimed before it are needed no more.

        Raises:
            KeyError: there is no such version, or it was overwritten.
        """
        with self._changed:
            buffer = self._find(version)
            if buffer is None or not buffer.offered:
                raise KeyError(version)
            for other in self._buffers:
                if other.version < version:
                    other.claimed = False
            buffer.readers += 1
            self._changed.notify_all()
            lent = LentBuckets(buffer.flats)
            weakref.finalize(lent, self._end_reading, buffer).atexit = False
            return lent

    def _end_reading(self, buffer: _Buffer) -> None:
        with self._changed:
            buffer.readers -= 1
            self._changed.notify_all()

    def _find(self, version: int) -> _Buffer | None:
        return next((buffer for buffer in self._buffers if buffer.version == version), None)

    def _has_room(self) -> bool:
        return len(self._buffers) < self._count or bool(self._free())

    def _free(self) -> Sequence[_Buffer]:
        return [buffer for buffer in self._buffers if not self._is_needed(buffer)]

    def _is_needed(self, buffer: _Buffer) -> bool:
        waits = buffer.waits and self._keeps_waiting
        return buffer.claimed or buffer.readers > 0 or waits
