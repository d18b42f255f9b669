"""Weight publication to a directory: what `from_pretrained` loads, complete the moment it has its name.

    snapshot (the only part that blocks training) ─► background thread: <dir>/.v<version> ─► rename ─► <dir>/v<version>

Give it a memory-backed file system where there is one: nothing here needs to outlive the run.
"""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import torch
from safetensors.torch import save_file

from arl.types import WeightUpdate

KEPT = 3  # versions on disk: engines may still be reading the last but one


def write_weights(directory: Path, version: int, config_json: str, state: dict[str, torch.Tensor]) -> WeightUpdate:
    """Write config.json and model.safetensors to `directory`/v<version>, all or nothing; forget old versions."""
    final, temporary = directory / f"v{version}", directory / f".v{version}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    (temporary / "config.json").write_text(config_json)
    save_file(state, temporary / "model.safetensors", metadata={"format": "pt"})
    temporary.rename(final)
    shutil.rmtree(directory / f"v{version - KEPT}", ignore_errors=True)
    return WeightUpdate(version, str(final))


class Publisher:
    """Writes snapshots in order, in a thread of its own, and announces each from there.

    Args:
        directory: where the versions go.
        config_json: the model's config.
        announce: called in the publishing thread with each WeightUpdate, or with the exception that ended it.
    """

    def __init__(self, directory: Path, config_json: str, announce: Callable[[WeightUpdate | Exception], None]) -> None:
        self._directory, self._config_json, self._announce = directory, config_json, announce
        self._queue: SimpleQueue[tuple[int, dict[str, torch.Tensor]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="publisher", daemon=True)
        self._thread.start()

    def publish(self, version: int, state: dict[str, torch.Tensor]) -> None:
        self._queue.put((version, state))

    def close(self, seconds: float) -> None:
        """Finish what is queued; raises TimeoutError if that takes longer."""
        self._queue.put(None)
        self._thread.join(seconds)
        if self._thread.is_alive():
            raise TimeoutError(f"the publisher still writes after {seconds:g} s")

    def _work(self) -> None:
        """Consumes snapshots; waits for the next; unblocked by `publish` and `close`."""
        while (item := self._queue.get()) is not None:
            try:
                self._announce(write_weights(self._directory, item[0], self._config_json, item[1]))
            except Exception as error:
                self._announce(error)
                raise
