"""Open sandboxes for tests: one of root, and one of an ordinary user."""

import os
import shutil
from collections.abc import Iterator

import pytest

from arl.errors import SandboxError
from arl.sandbox.bubblewrap import BubblewrapSandbox
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


@pytest.fixture(scope="module", params=["root", "ordinary user"])
def any_sandbox(request: pytest.FixtureRequest) -> Iterator[tuple[BubblewrapSandbox | OtherUser, int]]:
    """Return a sandbox of each kind of user, and the process that has opened it."""
    is_root = os.geteuid() == 0
    if (request.param == "root") != is_root and not is_root:
        pytest.skip("the tests do not run as root")
    opened: BubblewrapSandbox = request.getfixturevalue("sandbox")
    if (request.param == "root") == is_root:
        yield opened, os.getpid()
        return
    python = ordinary_python()
    if python is None:
        pytest.skip("arl, its packages or an interpreter of this version are not readable for ordinary users")
    user = OtherUser(python)
    yield user, user.process.pid
    user.close()
