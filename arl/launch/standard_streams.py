"""Give a command the standard input, output and errors that it counts on, and learn why its output fails."""

import contextlib
import io
import os
import sys
from collections.abc import Iterator


class StandardOutput(io.TextIOWrapper):
    """Remember why standard output could not be written, because other errors of the system mean something else."""

    failure: OSError | None = None

    def write(self, text: str, /) -> int:
        """See TextIOWrapper."""
        with self._remembered():
            return super().write(text)

    def flush(self) -> None:
        """See TextIOWrapper."""
        with self._remembered():
            super().flush()

    @contextlib.contextmanager
    def _remembered(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.failure = error
            raise


def open_closed_streams() -> None:
    """Open /dev/null where the caller has closed standard input, output or errors (`arl … >&-`).

    Otherwise the next file that is opened would get the descriptor, and what libraries print would be written to it.
    """
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            assert opened == descriptor, "the system gives the lowest that is free"
            os.set_inheritable(descriptor, True)  # as standard streams are
            setattr(sys, name, os.fdopen(descriptor, mode, closefd=False))


def watch_streams() -> None:
    """Let standard output be watched, and let it and errors show \\udcff for a byte of a name that is no UTF-8."""
    if isinstance(sys.stderr, io.TextIOWrapper):
        # In a fork whose file was replaced by a pipe it looks for its place in vain, after the change is made.
        with contextlib.suppress(OSError):
            sys.stderr.reconfigure(errors="backslashreplace")
    written = sys.stdout
    if isinstance(written, io.TextIOWrapper):
        written.flush()
        sys.stdout = StandardOutput(
            io.BufferedWriter(io.FileIO(written.fileno(), "w", closefd=False)),  # sys.__stdout__ keeps the other one
            encoding=written.encoding,
            errors="backslashreplace",
            line_buffering=written.line_buffering,
            write_through=written.write_through,
        )


def flush_output() -> OSError | None:
    """Write what is left of standard output; return why some of it could not be written."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    return sys.stdout.failure if isinstance(sys.stdout, StandardOutput) else None
