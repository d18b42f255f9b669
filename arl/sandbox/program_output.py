"""Collect what a program writes, up to a limit, until a connection says that it has ended."""

import os
import selectors
import signal
import socket
import time
from io import FileIO

from arl.errors import SandboxError
from arl.sandbox.base import MAX_OUTPUT, Outcome, Result

_READ_BYTES = 1 << 16


class Written:
    """Collect what a program writes on its two streams."""

    def __init__(self, streams: tuple[FileIO, FileIO]) -> None:
        self._streams = streams
        self._data = {stream.fileno(): bytearray() for stream in streams}
        for number in self._data:
            os.set_blocking(number, False)

    @property
    def is_full(self) -> bool:
        """Say whether one of the streams has more than a program may write."""
        return max(map(len, self._data.values())) > MAX_OUTPUT

    def collect(self, speaker: socket.socket, seconds: float) -> bytes | None:
        """Read until the connection has a message or ends (b""); None: too much is written, or the time is over."""
        end = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            for each in (speaker, *self._streams):
                selector.register(each, selectors.EVENT_READ)
            while not self.is_full and (left := end - time.monotonic()) > 0:
                ready = {key.fd: key for key, _ in selector.select(left)}
                if speaker.fileno() in ready:
                    for number, data in self._data.items():
                        while not self.is_full and _read(number, data):
                            pass  # what was written before is read to the end
                    return receive(speaker)
                for number, key in ready.items():
                    if not _read(number, self._data[number]):
                        selector.unregister(key.fileobj)
        return None

    def reported(self, report: bytes | None, elapsed: float) -> Result:
        """Return the result of a program of which its watcher has reported this.

        Args:
            report: empty: it was killed; None: it has not ended in time, or written too much.

        Raises:
            SandboxError: the program could not be isolated.
        """
        if report is None:
            return self.result("time", -signal.SIGKILL, elapsed)
        if report.startswith(b"!"):
            raise SandboxError(f"the sandbox cannot start a program: {report[1:].decode()}")
        if not report:
            return self.result(None, -signal.SIGKILL, elapsed)
        exit_code, is_late, seconds = report.split()
        return self.result("time" if is_late == b"1" else None, int(exit_code), float(seconds))

    def result(self, outcome: Outcome | None, exit_code: int, seconds: float) -> Result:
        """Return what was written; `outcome` is None: the exit code and the last line say it."""
        stdout, stderr = (bytes(data[:MAX_OUTPUT]).decode("utf-8", "replace") for data in self._data.values())
        if self.is_full:
            outcome = "output"
        if outcome is None:
            outcome = _outcome(exit_code, stderr)
        return Result(outcome=outcome, exit_code=exit_code, stdout=stdout, stderr=stderr, seconds=seconds)


def _outcome(exit_code: int, stderr: str) -> Outcome:
    if exit_code == 0:
        return "done"
    last_line = stderr.rstrip().rpartition("\n")[2]
    if exit_code == -signal.SIGKILL or last_line.startswith("MemoryError"):
        return "memory"  # the kernel kills a program where the machine has no memory left
    return "error"


def _read(number: int, into: bytearray) -> bool:
    """Add what has arrived, and say whether there may be more."""
    try:
        data = os.read(number, _READ_BYTES)
    except BlockingIOError:
        return False
    into += data
    return bool(data)


def receive(connection: socket.socket) -> bytes:
    """Return the next message of a connection; empty: it has ended."""
    try:
        return connection.recv(_READ_BYTES)
    except ConnectionError:
        return b""
