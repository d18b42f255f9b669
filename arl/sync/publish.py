"""Weight publication to a directory: what `from_pretrained` loads, complete the moment it has its name.

    snapshot (the only part that blocks training) ─► background thread: <dir>/.v<version> ─► rename ─► <dir>/v<version>

Give it a memory-backed file system where there is one: nothing here needs to outlive the run.
"""

import shutil
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import torch
from safetensors.torch import save_file

from arl.types import WeightUpdate

Announce = Callable[[WeightUpdate | Exception], None]


def write_weights(directory: Path, version: int, config_json: str, state: dict[str, torch.Tensor]) -> WeightUpdate:
    """Write config.json and model.safetensors to `directory`/v<version>, all or nothing."""
    final, temporary = directory / f"v{version}", directory / f".v{version}"
    temporary.mkdir()
    (temporary / "config.json").write_text(config_json)
    save_file(state, temporary / "model.safetensors", metadata={"format": "pt"})
    temporary.rename(final)
    return WeightUpdate(version, str(final))


class Publisher:
    """Writes the newest snapshot, in a thread of its own, and announces it from there.

    A snapshot that is still in line when a newer one arrives is never written: engines want the newest. Those of an
    exact lag want each in its turn: with `every_version` the trainer waits while there is one in line.

    Args:
        directory: where the versions go.
        config_json: the model's config.
        kept: versions on disk. Engines may still load version u while the trainer, whom the staleness gate stops at
            u + η + 1, publishes later ones: η + 2 are always enough. For an exact lag see arl.rollout.lag.
        announce: called in the publishing thread with each WeightUpdate, or with the exception that ended it.
        every_version: none is skipped.
    """

    def __init__(
        self, directory: Path, config_json: str, kept: int, announce: Announce, every_version: bool = False
    ) -> None:
        self._directory, self._config_json, self._kept, self._announce = directory, config_json, kept, announce
        self._every_version, self._place_in_line = every_version, threading.Semaphore(1)
        directory.mkdir(parents=True, exist_ok=True)
        self._written: deque[WeightUpdate] = deque()
        self._queue: SimpleQueue[tuple[int, dict[str, torch.Tensor]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="publisher", daemon=True)
        self._thread.start()

    def publish(self, version: int, state: dict[str, torch.Tensor]) -> None:
        """Put a snapshot in line."""
        if self._every_version:
            self._place_in_line.acquire()  # a publisher that failed has said so: nobody waits for this one then
        self._queue.put((version, state))

    def close(self, seconds: float) -> None:
        """Finish what is queued; raises TimeoutError if that takes longer."""
        self._queue.put(None)
        self._thread.join(seconds)
        if self._thread.is_alive():
            raise TimeoutError(f"the publisher still writes after {seconds:g} s")

    def _work(self) -> None:
        """Consumes snapshots; waits for the next; unblocked by `publish` and `close`."""
        ended = False
        while not ended and (item := self._queue.get()) is not None:
            if self._every_version:
                self._place_in_line.release()
            while not (self._every_version or ended or self._queue.empty()):
                newer = self._queue.get()
                ended, item = newer is None, newer or item
            try:
                self._written.append(write_weights(self._directory, item[0], self._config_json, item[1]))
                self._announce(self._written[-1])
                while len(self._written) > self._kept:
                    shutil.rmtree(self._written.popleft().path)
            except Exception as error:
                self._announce(error)
                raise
