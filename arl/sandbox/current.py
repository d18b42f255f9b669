"""Give every process of a run the sandbox that its recipe names: reward workers, and the controller for tools of envs.

recipe.sandbox ─► configure, in each process ─► sandbox() opens it at its first use
"""

import os
from collections.abc import Mapping
from typing import Any

from arl.config.sandbox_section import SandboxSection
from arl.errors import SandboxError
from arl.sandbox.base import Sandbox

_section = SandboxSection()
_opened: dict[int, Sandbox] = {}  # process id -> its own; a forked process must not use that of its parent


def configure(section: SandboxSection | Mapping[str, Any]) -> None:
    """Say which sandbox this process, and those that it forks, are to use."""
    global _section  # noqa: PLW0603  # reward functions are called by name, and take no other argument
    _section = SandboxSection.model_validate(section)


def sandbox() -> Sandbox:
    """Return the sandbox of this process, and open it at the first call.

    Raises:
        SandboxError: it cannot be opened here.
    """
    pid = os.getpid()
    if pid not in _opened:
        _opened[pid] = open_sandbox(_section)
    return _opened[pid]


def close_sandbox() -> None:
    """Close the sandbox of this process, if it has opened one."""
    opened = _opened.pop(os.getpid(), None)
    if opened is not None:
        opened.close()


def open_sandbox(section: SandboxSection) -> Sandbox:
    """Open what the recipe names.

    Raises:
        SandboxError: it cannot be opened here.
    """
    if section.unsafe:
        from arl.sandbox.unsafe import UnsafeSandbox

        return UnsafeSandbox()
    if section.kind == "bubblewrap":
        from arl.sandbox.bubblewrap import BubblewrapSandbox

        return BubblewrapSandbox()
    raise SandboxError(f"sandbox.kind {section.kind}: there is bubblewrap, fusion and e2b")
