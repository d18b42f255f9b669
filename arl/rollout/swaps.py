"""Have the engines load new versions while a run goes on, the last one included.

trainer's version ─► Admission.next_version ─► Trainer.weights ─► Engine.update_weights ─► lease ends ─► `on_swap`

The last version of a run is loaded at once.
"""

import asyncio
from collections.abc import Callable, Sequence

from arl.clock import now, outer_deadline
from arl.rollout.base import Observer, Segment
from arl.rollout.ledger import Horizon


class Swaps:
    """Load one version after the other into the engines of a segment.

    Args:
        horizon: names the last version.
        trained: returns the trainer's version.
        running: returns how many groups generate.
        on_swap: events that are set when engines serve a new version and have gone on.
        describe: returns the counts of this moment, for messages.
    """

    def __init__(
        self,
        segment: Segment,
        observer: Observer,
        horizon: Horizon,
        *,
        trained: Callable[[], int],
        running: Callable[[], int],
        on_swap: Sequence[asyncio.Event],
        describe: Callable[[], str],
    ) -> None:
        self._engine = segment.engine
        self._trainer = segment.trainer
        self._admission = segment.admission
        self._lease = segment.lease
        self._drain = segment.drain
        self._observer = observer
        self._deadlines = segment.deadlines
        self._horizon = horizon
        self._trained = trained
        self._running = running
        self._on_swap = on_swap
        self._describe = describe
        self.loadable = asyncio.Event()  # set by a step, a finished or a lost group, and when the gate may have closed

    async def run(self) -> None:
        """Have the engines load new versions, until they serve the last one.

        Consumes versions. Waits until the admission rule lets one be loaded, and with `sync.interrupt: false` until
        the open episodes have ended. Unblocked by steps, finished groups and lost groups.
        """
        while self._engine.loaded_version < self._horizon.steps:
            version = await self._next_version(self._engine.loaded_version)
            if self._drain is not None:
                await self._drain.close(self._deadlines.step)
            timeout = self._deadlines.swap_and_restart
            async with outer_deadline(timeout, "publisher", f"weights of version {version} in engines"):
                update = await self._trainer.weights(version)
                report = await self._engine.update_weights(update)
            self._observer.swapped(report)
            if self._drain is not None:
                self._drain.reopen()  # before the next turn of the trainer, which closes it again
            async with outer_deadline(timeout, "publisher", "engines to go on after the swap"):
                await self._lease.release()
            for event in self._on_swap:
                event.set()

    async def _next_version(self, loaded: int) -> int:
        """Wait for the version to load after `loaded`; the deadline counts from the last step or end of a group."""
        timeout = 3 * self._deadlines.step  # a checkpoint, a batch, a step
        what = f"a version after {loaded} to load"
        async with outer_deadline(timeout, "publisher", lambda: f"{what}; {self._describe()}") as scope:
            while True:
                self.loadable.clear()
                version = self._choose(loaded)
                if version is not None:
                    break
                await self.loadable.wait()
                scope.reschedule(now() + timeout)
        return version

    def _choose(self, loaded: int) -> int | None:
        """Return the next version to load, if there is one. The run's last one waits for no group."""
        trained = self._trained()
        if trained == self._horizon.steps:
            return trained
        return self._admission.next_version(loaded, trained, running=self._running())
