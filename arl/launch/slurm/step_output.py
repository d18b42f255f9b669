"""Pass on what the process of a step prints, without its secrets: srun carries it over the network in the clear.

process ─► pipe ─► HiddenSecrets, in a thread ─► standard output of the runner ─► srun

The runner imports this module, so it uses the standard library only, and what arl has of that kind.
"""

import contextlib
import os
import threading
from collections.abc import Sequence

from arl.launch.hidden_secrets import HiddenSecrets

PIECE = 1 << 16  # bytes that are read at once


class StepOutput:
    """Copy the output of one process to standard output.

        output = StepOutput(secrets)
        subprocess.Popen(…, stdout=output.writing_end, stderr=output.writing_end)
        output.start()
        …                       # the process ends
        output.finish(1.0)

    Args:
        secrets: texts that are hidden.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        self._reading_end, self.writing_end = os.pipe()
        self._secrets = HiddenSecrets(secrets)
        self._thread = threading.Thread(target=self._copy, name="output of the step", daemon=True)

    def start(self) -> None:
        """Begin to copy, after the process has the writing end, which is closed here."""
        os.close(self.writing_end)
        self._thread.start()

    def finish(self, seconds: float) -> None:
        """Wait until everything is copied, for so long at most: something that the process has left may print on."""
        self._thread.join(seconds)

    def _copy(self) -> None:
        """Copy until nobody can print any more, or nobody reads; the process then gets SIGPIPE, as without a pipe."""
        nobody_reads = contextlib.suppress(OSError)
        with nobody_reads, open(self._reading_end, "rb", buffering=0) as pipe:
            while piece := pipe.read(PIECE):
                _print(self._secrets.take(piece))
            _print(self._secrets.rest())


def _print(output: bytes) -> None:
    rest = memoryview(output)
    while rest:
        rest = rest[os.write(1, rest) :]
