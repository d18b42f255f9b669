"""Read and write the files of RUN/control. They are this user's alone, appear as a whole, and are small.

    RUN/control/state.json           the controller, once a second ─► everybody
    RUN/control/requests/ID.json     a command ─► the controller, which takes it away
    RUN/control/answers/ID.json      the controller ─► the command, which takes it away

Ages are differences of modification times, which one file server has set, so that clocks of hosts do not matter.
"""

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = "control"
LONGEST = 1 << 20  # bytes of a file; a thousand engines take a tenth of it
MOST_AT_ONCE = 16  # requests
REQUEST_SECONDS = 60.0  # an older request is dropped, because whoever made it has given up
ANSWER_SECONDS = 600.0  # an older answer is dropped, because nobody has taken it
REMOVALS = 10  # at most: a thread that still writes the last state, or a command, may add a file to what is removed
NAME = re.compile(r"[0-9a-f]{16}\.json")


@dataclass
class Polled:
    """Hold what one look into the folder has found.

    Args:
        requests: for each request its name, and what it says; a str says why it cannot be read.
        failure: why a file stays where it is; empty: none does that should not.
    """

    requests: list[tuple[str, bytes | str]] = field(default_factory=list)
    failure: str = ""


class ControlFolder:
    """Represent RUN/control, for both sides."""

    def __init__(self, run: Path) -> None:
        self.path = run / FOLDER
        self.state = self.path / "state.json"
        self.requests = self.path / "requests"
        self.answers = self.path / "answers"

    def make(self) -> None:
        """Make it anew: what a run that was killed has left in it is removed."""
        self.remove()
        for folder in (self.path, self.requests, self.answers):
            folder.mkdir(mode=0o700)

    def remove(self) -> None:
        """Remove it, which says that the run has ended."""
        for _ in range(REMOVALS):
            shutil.rmtree(self.path, ignore_errors=True)
            if not os.path.exists(self.path):
                return

    def poll(self, state: bytes) -> "Polled":
        """Write the controller's state, take the requests that are there, and drop what nobody waits for.

        A request that is not taken, for whatever reason, stays where it is until the next poll.

        Raises:
            OSError: the folder cannot be used; no request was taken.
        """
        write_private(self.state, state)
        now = self.state.stat().st_mtime
        polled = Polled()
        old_answer = _drop_old(self.answers, now - ANSWER_SECONDS)
        old_request = _drop_old(self.requests, now - REQUEST_SECONDS)
        polled.failure = old_answer or old_request
        for file in _own_files(self.requests):
            if len(polled.requests) == MOST_AT_ONCE:
                break
            content = _read_or_reason(file)
            try:
                file.unlink()
            except FileNotFoundError:  # its command has taken it back
                continue
            except OSError as error:  # it would be done again and again
                polled.failure = _reason(file, error)
                continue
            polled.requests.append((file.name, content))
        return polled

    def answer(self, name: str, data: bytes) -> None:
        """Answer the request `name`."""
        write_private(self.answers / name, data)


def new_name() -> str:
    """Make the name of a request, and of its answer."""
    return f"{secrets.token_hex(8)}.json"


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only this user may read, so that it appears with all of its content."""
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
        unfinished.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def read_private(path: Path) -> bytes:
    """Read a small file that this user has written.

    Raises:
        OSError: it is not there, or cannot be read.
        ValueError: it is no such file: a link, a pipe, another user's, or a long one.
    """
    try:
        return _read_private(path)
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
    return _read_private(path)  # NFS, where another host has replaced the file since it was opened


def _read_private(path: Path) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
            raise ValueError("it is not a file of this user")
        if found.st_size > LONGEST:
            raise ValueError(f"{found.st_size} bytes; {LONGEST} are allowed")
        return file.read(LONGEST)


def _own_files(folder: Path) -> list[Path]:
    """Return the files of `folder` that have the name of a request. Whatever else lies there is left alone."""
    with os.scandir(folder) as entries:
        own = [entry for entry in entries if NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)]
    return [Path(entry.path) for entry in own]


def _read_or_reason(file: Path) -> bytes | str:
    try:
        return read_private(file)
    except (OSError, ValueError) as error:
        return str(error)


def _drop_old(folder: Path, before: float) -> str:
    """Remove the files that were written before this time, by the file server's clock; return what kept it from that.

    One file that cannot be removed must not keep the controller from what else lies there.
    """
    failure = ""
    for file in _own_files(folder):
        try:
            if file.stat().st_mtime < before:
                file.unlink()
        except FileNotFoundError:  # taken meanwhile
            continue
        except OSError as error:
            failure = _reason(file, error)
    return failure


def _reason(file: Path, error: OSError) -> str:
    return f"{file}: {error.strerror}"
