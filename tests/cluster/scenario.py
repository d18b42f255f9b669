"""Start processes on three nodes of a cluster, kill them in many ways, and print what the launcher says of each.

    python -m tests.cluster.scenario slurm DIRECTORY       within a job of three nodes
    python -m tests.cluster.scenario ray DIRECTORY         on a node of a Ray cluster

Each line is JSON: a name, and what was seen. After the line `kill n2` it waits until that node has been killed.
`assert_as_documented` compares it with what a user is promised, on whatever cluster.
"""

import asyncio
import contextlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import psutil

from arl.config.recipe import Recipe
from arl.errors import ProcessDied
from arl.launch.base import Command, Launcher, Resources, make_launcher
from tests.cluster.machines import Machine

PATIENCE = 5.0
SERVE = "import time; print('ready here', flush=True); time.sleep(600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SERVE}"
ENVIRONMENT = """
import os, platform, time
names = ("SECRET", "ARL_HOST", "GLOO_SOCKET_IFNAME", "GIVEN", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
of_ray = [name for name in os.environ if name.startswith("RAY_")]
print("ready", platform.node(), os.getcwd(), *map(os.environ.get, names), *of_ray, flush=True)
time.sleep(600)
"""
TREE = f"import subprocess; subprocess.Popen(['sleep', '600']); {SERVE}"
ENDS = {
    "fails": "import sys; print('x' * 300_000); print('no such luck'); sys.exit(1)",
    "exits with 137": "import sys; sys.exit(137)",
    "kills its runner": "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
    "ends without a newline": "import sys; sys.stdout.write('done')",
}


def say(name: str, *seen: object) -> None:
    """Print a line for the test."""
    print(json.dumps([name, *seen]), flush=True)


def read_lines(log: Path) -> dict[str, list[Any]]:
    """Return what a scenario has printed into a log, by name."""
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith('["')]
    return {name: values for name, *values in lines}


def python(code: str) -> Command:
    """Return the command that runs a few lines."""
    return Command((sys.executable, "-c", code), {"GIVEN": "by-the-command"}, {"SECRET": "s3cret"})


async def meet_every_end(launcher: Launcher) -> None:
    """Stop a process that ends in peace, and one that does not; let some end by themselves, and one lose its node."""
    for name, code in (("environment", ENVIRONMENT), ("stubborn", STUBBORN)):
        process = await launcher.start("engine-0", python(code), Resources(2, ("1", "3"), node=1))
        say(name, await process.ready(PATIENCE * 10))
        await process.stop(0.5)
        say(f"{name} stopped", await process.ended(), process.exit_code)

    for name, code in ENDS.items():
        process = await launcher.start("engine-1", python(code), Resources(1, node=2))
        say(name, await process.ended(), process.exit_code, process.log_tail()[-300:])

    process = await launcher.start("engine-2", python(SERVE), Resources(1, node=1))
    await process.ready(PATIENCE * 10)
    say("kill n2")
    say("lost", await process.ended(), process.exit_code, list(launcher.lost_nodes), process.log_tail()[-300:])
    try:
        await launcher.start("engine-2", python(SERVE), Resources(1, node=1))
    except ProcessDied as error:
        say("refused", str(error))


async def main(name: str, directory: Path) -> None:
    """Run all of it, with processes on two nodes that nobody stops until the end."""
    recipe = {"launcher": name, "cluster": {"nodes": 3}}
    needed = {"model": {"path": "m"}, "data": {"task": "long_tail"}}
    async with make_launcher(Recipe.model_validate({**needed, **recipe}), directory / "logs") as launcher:
        say("nodes", [(node.name, node.address) for node in launcher.nodes])
        for node in (0, 2):
            beside = await launcher.start(f"beside-{node}", python(TREE), Resources(1, node=node))
            await beside.ready(PATIENCE * 10)
        await meet_every_end(launcher)


def assert_as_documented(seen: dict[str, list[Any]], addresses: dict[str, str], runner: str, lost: str) -> None:
    """Check what a scenario has said.

    Args:
        addresses: of the nodes, by name.
        runner: how a process ends whose parent on its node was killed.
        lost: how one ends whose node was lost.
    """
    assert seen["nodes"] == [[list(node) for node in addresses.items()]]
    here = f"n2 {Path.cwd()} s3cret {addresses['n2']} eth0 by-the-command 2 1,3"
    assert seen["environment"] == [here], "each node has its own address; variables of Ray stay away"
    engine_0 = r"engine-0 \(pid \d+ on n2\) "
    engine_1 = r"engine-1 \(pid \d+ on n3\) "
    expected = {
        "environment stopped": (rf"{engine_0}was killed by SIGTERM", -15),
        "stubborn stopped": (rf"{engine_0}was killed by SIGKILL", -9),
        "fails": (rf"{engine_1}exited with code 1", 1),
        "exits with 137": (rf"{engine_1}exited with code 137", 137),
        "kills its runner": (engine_1 + runner, -9),
        "ends without a newline": (rf"{engine_1}exited with code 0", 0),
        "lost": (rf"engine-2 \(pid \d+ on n2\) {lost}", -9),
    }
    for name, (words, code) in expected.items():
        assert re.match(words, seen[name][0]), (name, seen[name])
        assert seen[name][1] == code, (name, seen[name])
    assert "no such luck" in seen["fails"][2]
    assert seen["lost"][2] == [1]
    assert "ready here" in seen["lost"][3], "the end of the log of a lost process is shown"
    assert seen["refused"] == ["engine-2 cannot be started: node n2 has failed"]
    assert seen["left"] == [["logs"]], "secrets are gone"


def kill_controller(machine: Machine) -> None:
    """Kill the process that runs a scenario on a machine."""
    for process in machine.processes():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            if "tests.cluster.scenario" in process.cmdline()[:3]:
                process.kill()
                return
    raise AssertionError("no scenario runs")


if __name__ == "__main__":
    run_directory = Path(sys.argv[2])
    asyncio.run(main(sys.argv[1], run_directory))
    say("left", sorted(path.name for path in run_directory.iterdir()))
