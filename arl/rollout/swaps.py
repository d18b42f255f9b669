"""Have the engines load new versions while a run goes on, the last one included.

trainer's version ─► Admission.next_version ─► Trainer.weights ─► Engine.update_weights ─► lease ends ─► events
"""

from arl.clock import now, outer_deadline
from arl.rollout.base import Observer, Segment
from arl.rollout.controller_state import Progress


async def publish(segment: Segment, progress: Progress, observer: Observer) -> None:
    """Have the engines load new versions, until they serve the last one.

    Consumes versions. Waits until the admission rule lets one be loaded, and with `sync.interrupt: false` until the
    open episodes have ended. Unblocked by steps, finished groups and lost groups.
    """
    engine = segment.engine
    timeout = segment.deadlines.swap_and_restart
    while engine.loaded_version < progress.last_version:
        version = await _next_version(segment, progress)
        if segment.drain is not None:
            await segment.drain.close(segment.deadlines.step)
        async with outer_deadline(timeout, "publisher", f"weights of version {version} in engines"):
            update = await segment.trainer.weights(version)
            report = await engine.update_weights(update)
        observer.swapped(report)
        if segment.drain is not None:
            segment.drain.reopen()  # before the next turn of the trainer, which closes it again
        if segment.lease is not None:
            async with outer_deadline(timeout, "publisher", "engines to go on after the swap"):
                await segment.lease.release()
        progress.capacity.set()
        progress.finished.set()


async def _next_version(segment: Segment, progress: Progress) -> int:
    """Wait for the version to load next; the deadline counts from the last step or end of a group."""
    loaded = segment.engine.loaded_version
    timeout = 3 * segment.deadlines.step  # a checkpoint, a batch, a step

    what = f"a version after {loaded} to load"
    async with outer_deadline(timeout, "publisher", lambda: f"{what}; {progress.describe()}") as scope:
        while True:
            progress.loadable.clear()
            if progress.has_ended:  # the run's last version waits for no group
                return progress.version
            version = segment.admission.next_version(loaded, progress.version, running=len(progress.running))
            if version is not None:
                return version
            await progress.loadable.wait()
            scope.reschedule(now() + timeout)
