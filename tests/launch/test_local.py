"""Processes: readiness is awaited, deaths are told, and nothing outlives the block that started it."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from arl.errors import DeadlineError, ProcessDied
from arl.launch.local import LocalProcesses
from tests.processes import survivors

READY = "print('ready to serve', flush=True); import time; time.sleep(600)"
GRANDCHILD = (
    "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); " + READY
)
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + READY
FAILING = "import sys; print('about to fail', flush=True); sys.exit('no such luck')"


def argv(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.mark.parametrize("code", [READY, GRANDCHILD, STUBBORN])
def test_the_whole_tree_is_gone_after_the_block(tmp_path: Path, code: str) -> None:
    async def main() -> list[psutil.Process]:
        async with LocalProcesses(tmp_path, patience=0.5) as processes:
            child = await processes.start("child", argv(code), {})
            assert await child.ready(120) == "to serve"
            tree = psutil.Process(child.pid)
            return [tree, *tree.children(recursive=True)]

    tree = asyncio.run(main())
    assert not survivors(tree)
    assert len(tree) == (2 if code is GRANDCHILD else 1)


def test_a_process_that_dies_before_it_is_ready_says_why(tmp_path: Path) -> None:
    async def main() -> None:
        async with LocalProcesses(tmp_path, patience=1) as processes:
            child = await processes.start("engine-0", argv(FAILING), {})
            await child.ready(120)

    with pytest.raises(ProcessDied, match=r"(?s)engine-0 .* exited with code 1.*about to fail.*no such luck"):
        asyncio.run(main())


def test_a_process_that_is_never_ready_runs_into_the_deadline(tmp_path: Path) -> None:
    async def main() -> None:
        async with LocalProcesses(tmp_path, patience=1) as processes:
            child = await processes.start("engine-0", argv("import time; time.sleep(600)"), {})
            await child.ready(0.2)

    with pytest.raises(DeadlineError, match=r"launcher waited 0\.2 s for engine-0 to be ready"):
        asyncio.run(main())


def test_the_watcher_names_whoever_is_killed(tmp_path: Path) -> None:
    async def main() -> None:
        async with LocalProcesses(tmp_path, patience=1) as processes:
            await processes.start("engine-0", argv(READY), {})
            victim = await processes.start("trainer-0", argv(READY), {})
            await victim.ready(20)
            os.kill(victim.pid, signal.SIGKILL)
            await processes.watch()

    with pytest.raises(ProcessDied, match=r"trainer-0 .* was killed by SIGKILL"):
        asyncio.run(main())


def test_a_grandchild_that_escapes_with_the_pipe_does_not_hold_up_the_end(tmp_path: Path) -> None:
    escape = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], "
        "start_new_session=True); print('ready', p.pid, flush=True)"
    )

    async def main() -> int:
        async with LocalProcesses(tmp_path, patience=1) as processes:
            child = await processes.start("child", argv(escape), {})
            escaped = int(await child.ready(120))
            await child.finished(120)
            return escaped

    psutil.Process(asyncio.run(asyncio.wait_for(main(), 300))).kill()


def test_children_die_with_a_killed_parent(tmp_path: Path) -> None:
    child = f"from arl.launch.child import die_with_parent; die_with_parent(); {READY}"
    parent = (
        "import asyncio, sys; from pathlib import Path; from arl.launch.local import LocalProcesses\n"
        "async def main():\n"
        f"    async with LocalProcesses(Path({str(tmp_path)!r}), 1) as ps:\n"
        f"        c = await ps.start('child', [sys.executable, '-c', {child!r}], {{}})\n"
        "        await c.ready(20); print(c.pid, flush=True); await asyncio.sleep(600)\n"
        "asyncio.run(main())"
    )

    async def main() -> None:
        process = await asyncio.create_subprocess_exec(*argv(parent), stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        orphan = psutil.Process(int(await process.stdout.readline()))
        process.kill()
        await process.wait()
        assert not survivors([orphan])

    asyncio.run(main())
