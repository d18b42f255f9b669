"""Open sandboxes for tests: one of root, and one of an ordinary user."""

import os
import shutil
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from arl.errors import SandboxError
from arl.sandbox.bubblewrap import BubblewrapSandbox
from tests.processes import below
from tests.sandbox.as_user import OtherUser, ordinary_python


@pytest.fixture(scope="module")
def sandbox() -> Iterator[BubblewrapSandbox]:
    """Return a sandbox of this user."""
    try:
        opened = BubblewrapSandbox()
    except SandboxError as error:
        if shutil.which("bwrap"):
            raise
        pytest.skip(str(error))
    yield opened
    opened.close()


class Opened(NamedTuple):
    """Hold a sandbox and the process that has opened it."""

    sandbox: BubblewrapSandbox | OtherUser
    pid: int
    others: int  # processes below that one which are not of the sandbox: earlier tests have left them open


@pytest.fixture(scope="module", params=["root", "ordinary user"])
def any_sandbox(request: pytest.FixtureRequest, sandbox: BubblewrapSandbox) -> Iterator[Opened]:
    """Return a sandbox of each kind of user."""
    is_root = os.geteuid() == 0
    if request.param == "root" and not is_root:
        pytest.skip("the tests do not run as root")
    others = len(below(os.getpid()))
    if (request.param == "root") == is_root:
        own = BubblewrapSandbox()
        yield Opened(own, os.getpid(), others)
        own.close()
        return
    python = ordinary_python()
    if python is None:
        pytest.skip("arl, its packages or an interpreter of this version are not readable for ordinary users")
    user = OtherUser(python)
    yield Opened(user, user.process.pid, 0)
    user.close()
