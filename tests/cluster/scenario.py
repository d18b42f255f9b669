"""Start processes on the nodes of a Slurm job, kill them in many ways, and print what the launcher says of each.

    python -m tests.cluster.scenario DIRECTORY       within a job of three nodes

Each line is JSON: a name, and what was seen. After the line `kill n2` it waits until somebody has killed that node.
"""

import asyncio
import json
import sys
from pathlib import Path

from arl.config.cluster_section import Cluster
from arl.errors import ProcessDied
from arl.launch.base import Command, Resources
from arl.launch.slurm.slurm_launcher import SlurmLauncher

PATIENCE = 5.0
SERVE = "import time; print('ready here', flush=True); time.sleep(600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SERVE}"
ENVIRONMENT = (
    "import os, time; "
    "print('ready', *(os.environ.get(n) for n in ('SECRET', 'ARL_HOST', 'GLOO_SOCKET_IFNAME')), flush=True); "
    "time.sleep(600)"
)
ENDS = {
    "fails": "import sys; print('about to fail'); sys.exit(7)",
    "exits with 137": "import sys; sys.exit(137)",
    "kills itself": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "kills its runner": "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
    "ends without a newline": "import sys; sys.stdout.write('done')",
}


def say(name: str, *seen: object) -> None:
    """Print a line for the test."""
    print(json.dumps([name, *seen]), flush=True)


def python(code: str) -> Command:
    """Return the command that runs a few lines."""
    return Command((sys.executable, "-c", code), secrets={"SECRET": "s3cret"})


async def stops(launcher: SlurmLauncher) -> None:
    """Stop a process that ends in peace, and one that does not."""
    for name, code in (("environment", ENVIRONMENT), ("stubborn", STUBBORN)):
        process = await launcher.start("engine-0", python(code), Resources(1, node=1))
        say(name, await process.ready(PATIENCE * 10))
        await process.stop(0.5)
        say(f"{name} stopped", process.exit_code, await process.ended())


async def ends(launcher: SlurmLauncher) -> None:
    """Let processes end by themselves."""
    for name, code in ENDS.items():
        process = await launcher.start("engine-1", python(code), Resources(1, node=2))
        say(name, await process.ended(), process.exit_code)


async def loses_a_node(launcher: SlurmLauncher) -> None:
    """Wait until the node of a process has failed."""
    process = await launcher.start("engine-2", python(SERVE), Resources(1, node=1))
    await process.ready(PATIENCE * 10)
    say("kill n2")
    say("lost", await process.ended(), process.exit_code, list(launcher.lost_nodes))
    try:
        await launcher.start("engine-2", python(SERVE), Resources(1, node=1))
    except ProcessDied as error:
        say("refused", str(error))


async def main(directory: Path) -> None:
    """Run all of it, with one process that nobody stops until the end."""
    async with SlurmLauncher(directory / "logs", PATIENCE, Cluster(nodes=3)) as launcher:
        say("nodes", [(node.name, node.address) for node in launcher.nodes])
        beside = await launcher.start("beside", python(SERVE), Resources(1))
        await beside.ready(PATIENCE * 10)
        await stops(launcher)
        await ends(launcher)
        await loses_a_node(launcher)


if __name__ == "__main__":
    run_directory = Path(sys.argv[1])
    asyncio.run(main(run_directory))
    say("left", sorted(path.name for path in run_directory.iterdir()))
