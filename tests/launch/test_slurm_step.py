"""A process behind a step's runner is watched: here the runner runs on this machine, without an srun before it."""

import asyncio
import sys
from pathlib import Path

import psutil

from arl.launch.network import HOST
from arl.launch.process import Role, start_child
from arl.launch.run_secrets import write_variables
from arl.launch.slurm import step_runner
from arl.launch.slurm.slurm_launcher import SlurmProcess
from tests.processes import survivors

SLEEP = "import time; print('ready here', flush=True); time.sleep(600)"


async def start_step(directory: Path, code: str) -> SlurmProcess:
    """Start a few lines of Python behind a runner."""
    file = write_variables(directory, "engine-0", {HOST: "127.0.0.1"})
    runner = (sys.executable, "-I", str(step_runner.__file__), file, sys.executable, "-c", code)
    child = await start_child(runner, {}, stdin=asyncio.subprocess.PIPE)
    return SlurmProcess(Role("engine-0", directory / "engine-0.log", node=1, node_name="n2"), child, set())


def test_signals_reach_a_process_and_what_it_has_started_and_nothing_is_left_when_the_controller_has_gone(
    tmp_path: Path,
) -> None:
    leave = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}])\n{SLEEP}"
    deaf = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{leave}"

    async def main() -> None:
        process = await start_step(tmp_path, leave)
        await process.ready(60)
        tree = psutil.Process(process._process.pid).children(recursive=True)
        await process.stop(60)
        assert process.exit_code == -15
        assert not survivors(tree)

        process = await start_step(tmp_path, deaf)
        await process.ready(60)
        tree = psutil.Process(process._process.pid).children(recursive=True)
        assert process._process.stdin is not None
        process._process.stdin.close()
        assert "was killed by SIGKILL, perhaps because memory was short" in await process.ended()
        assert not survivors(tree)

    asyncio.run(main())
    assert not list(tmp_path.glob("*.json")), "its secrets are gone"
