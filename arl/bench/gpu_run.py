"""Run the checks of arl.bench.gpu_questions.py, and keep what they measured: `arl bench gpu`.

    each check ─► its commands, within their deadline ─► <out>/<check>.json ─► <out>/README.md: measured, or not yet

A command that fails or takes too long is reported in the document, and the others go on.
"""

import asyncio
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

from arl import clock
from arl.bench import to_json
from arl.bench.gpu_questions import CHECKS, Check, CheckCommand
from arl.errors import DeadlineError, InputError, ProcessDied
from arl.launch.base import Command
from arl.launch.devices import visible_devices
from arl.launch.process import start_process

COMMAND_SECONDS = 600.0
STOP_SECONDS = 10.0  # from SIGTERM to SIGKILL
PRINTED = "printed"  # file of a command's standard output; its log has the rest
INTO_FILE = ("sh", "-c", 'exec "$@" >"$0"')
TABLE_HEAD = """# What was measured on a GPU

`arl bench gpu` runs these checks in a clone of arl, and writes this page. Each is a file of this directory once it was
measured. None has a number of a GPU before that.

| check | settles | measured |
|---|---|---|
"""


def run_gpu_checks(names: Sequence[str], out: Path, note: Callable[[str], None]) -> dict[str, Any]:
    """Run the checks with these names, or all of them, and write their documents and the table to `out`.

    Returns:
        check -> command -> "ok", or why it has no result.

    Raises:
        InputError: a name is unknown, or no GPU is visible.
    """
    known = {check.name: check for check in CHECKS}
    for name in names:
        if name not in known:
            raise InputError(f"check {name!r}: there is none of that name; choose from {', '.join(known)}")
    if not visible_devices():
        raise InputError("arl bench gpu: no GPU is visible to torch, and these checks measure one; see `arl doctor`")
    chosen = [known[name] for name in names] or list(CHECKS)
    return run_checks(chosen, out, note)


def run_checks(checks: Sequence[Check], out: Path, note: Callable[[str], None]) -> dict[str, Any]:
    """Run `checks` one after the other; see run_gpu_checks."""
    out.mkdir(parents=True, exist_ok=True)
    outcomes: dict[str, Any] = {}
    for check in checks:
        note(f"{check.name}: {check.settles}")
        results = {command.name: _run(command, note) for command in check.commands}
        (out / f"{check.name}.json").write_text(_document(check, results) + "\n")
        (out / "README.md").write_text(table(out))
        outcomes[check.name] = {name: result.get("error", "ok") for name, result in results.items()}
    return outcomes


def table(out: Path) -> str:
    """Write the table of all checks: when and on which device each was measured, or that it was not."""
    rows = [f"| `{check.name}` | {check.settles} | {_measured(out / f'{check.name}.json')} |\n" for check in CHECKS]
    return TABLE_HEAD + "".join(rows)


def _measured(file: Path) -> str:
    if not os.path.exists(file):
        return "not yet"
    document = json.loads(file.read_text())
    failed = [name for name, result in document["results"].items() if "error" in result]
    failures = f"; failed: {', '.join(failed)}" if failed else ""
    return f"{document['date']}, {document['device']}{failures}"


def _document(check: Check, results: dict[str, Any]) -> str:
    return to_json(
        {
            "check": check.name,
            "settles": check.settles,
            "date": datetime.now(UTC).date().isoformat(),
            "device": _device(),
            "results": results,
        }
    )


def _device() -> str:
    """Return the name of the first GPU, or that there is none."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"


def _run(command: CheckCommand, note: Callable[[str], None]) -> dict[str, Any]:
    """Run one command in a new directory; return its seconds, and its result or its error."""
    note(f"  {command.name}")
    began = perf_counter()
    with tempfile.TemporaryDirectory(prefix="arl-gpu-") as directory:
        found = clock.run(lambda: _result(command, Path(directory)))
    return {"command": " ".join(command.argv[1:]), "seconds": round(perf_counter() - began, 1)} | found


async def _result(command: CheckCommand, directory: Path) -> dict[str, Any]:
    """Return what the command has found, or why it has found nothing."""
    printed = directory / PRINTED
    log = directory / "log"
    argv = [part.replace("{directory}", str(directory)) for part in command.argv]
    process = await start_process(command.name, Command((*INTO_FILE, str(printed), *argv), {}), log, None)
    failed: dict[str, Any] = {}
    try:
        await process.finished(COMMAND_SECONDS)
    except (ProcessDied, DeadlineError) as error:
        failed = {"error": f"{error}"}
    finally:
        await asyncio.shield(process.stop(STOP_SECONDS))
    try:
        return failed | {"result": command.read(directory, printed.read_text())}
    except (OSError, ValueError) as error:  # why it ended says more, if it ended badly
        return failed or {"error": f"it printed nothing that can be read ({error}).\n{process.last_words()}"}
