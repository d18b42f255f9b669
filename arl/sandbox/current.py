"""Give every process of a run the sandbox that its recipe names: reward workers, and the controller for tools of envs.

recipe.sandbox ─► configure, in each process ─► sandbox() opens it at its first use
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from arl.config.imports import import_seam
from arl.config.sandbox_section import SandboxSection
from arl.errors import SandboxError
from arl.sandbox.base import Program, Sandbox

BUILT_IN = {
    "bubblewrap": "arl.sandbox.bubblewrap:BubblewrapSandbox",
    "fusion": "arl.sandbox.fusion:FusionSandbox",
    "e2b": "arl.sandbox.e2b:E2BSandbox",
}
_section = SandboxSection()
_lock = threading.Lock()
_opened: dict[int, Sandbox] = {}  # process id -> its own; a forked process must not use that of its parent


def configure(section: SandboxSection | Mapping[str, Any]) -> None:
    """Say which sandbox this process, and those that it forks, are to use."""
    global _section  # noqa: PLW0603  # reward functions are called by name, and take no other argument
    _section = SandboxSection.model_validate(section)


@contextlib.contextmanager
def configured(section: SandboxSection) -> Iterator[None]:
    """Let this process use that sandbox for a while, and close it at the end."""
    configure(section)
    try:
        yield
    finally:
        close_sandbox()


def sandbox() -> Sandbox:
    """Return the sandbox of this process, and open it at the first call.

    Raises:
        SandboxError: it cannot be opened here.
    """
    pid = os.getpid()
    with _lock:
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
        RecipeError: `kind` names no sandbox.
    """
    example = BUILT_IN["fusion"]
    factory: Callable[[SandboxSection], Sandbox] = import_seam(section.kind, "sandbox.kind", Sandbox, example, BUILT_IN)
    return factory(section)


def check_sandbox(section: SandboxSection) -> None:
    """Open the sandbox, run a program, and close it.

    Raises:
        SandboxError: programs do not run.
    """
    opened = open_sandbox(section)
    try:
        result = opened.run(Program(code="print(6 * 7)"))
    finally:
        opened.close()
    if result.stdout != "42\n":
        raise SandboxError(f"sandbox.kind {section.kind}: it runs programs wrongly: print(6 * 7) gave {result}")
