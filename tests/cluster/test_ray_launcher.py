"""Launch on a real Ray cluster of three machines: what is started is reported, watched and ended on every node."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.machines import Machine
from tests.cluster.ray_cluster import RayCluster, missing_for_ray, ray_cluster
from tests.cluster.slurm_cluster import wait_for
from tests.processes import survivors

MISSING = missing_for_ray()
pytestmark = [pytest.mark.long, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]

NODES = ("n1", "n2", "n3")
SLEEPS = re.compile(r"sleep\(600\)|sleep 600")
SLEEP = "import time; time.sleep(600)"
TREE = "import subprocess, sys; subprocess.Popen(['sleep', '600']); print('ready now', flush=True); " + SLEEP
# A controller: it opens the launcher and runs `scenario(launcher)`, which prints lines of JSON.
CONTROLLER = """
import asyncio, json, os, sys
from pathlib import Path
from arl.config.cluster_section import Cluster
from arl.errors import ProcessDied
from arl.launch.base import Command, Resources
from arl.launch.ray.ray_launcher import RayLauncher

def tell(**what):
    print("told", json.dumps(what), flush=True)

def python(code, **secrets):
    return Command((sys.executable, "-c", code), dict(GIVEN="by the command"), secrets)

async def main():
    async with RayLauncher(Path({logs!r}), 1.0, Cluster(nodes={num_nodes})) as launcher:
        await scenario(launcher)
    tell(ended=True)

{scenario}
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    with ray_cluster(tmp_path_factory.mktemp("ray")) as running:
        yield running


class Controller:
    """Run a scenario on the head, and read what it tells."""

    def __init__(self, cluster: RayCluster, directory: Path, scenario: str, num_nodes: int = 3) -> None:
        self.log = directory / "controller.log"
        self.logs = directory / "run" / "logs"
        code = CONTROLLER.format(logs=str(self.logs), num_nodes=num_nodes, scenario=scenario)
        self._entered = cluster.start_on_head([sys.executable, "-c", code], self.log)

    def told(self) -> list[dict[str, Any]]:
        """Return what it has told so far."""
        lines = self.log.read_text().splitlines()
        return [json.loads(line.removeprefix("told ")) for line in lines if line.startswith("told ")]

    def wait_for(self, key: str, seconds: float = 60.0) -> dict[str, Any]:
        """Wait until it has told something of this key."""
        wait_for(lambda: any(key in told for told in self.told()), f"{key}, after\n{self.log.read_text()}", seconds)
        return next(told for told in self.told() if key in told)

    def end(self) -> list[dict[str, Any]]:
        """Wait for its end, and return everything that it has told."""
        assert self._entered.wait(60) == 0, self.log.read_text()
        return self.told()

    def kill(self) -> None:
        """Kill it, and what entered the machine for it."""
        (inside,) = psutil.Process(self._entered.pid).children()
        inside.kill()
        self._entered.wait(60)


def started_by(machine: Machine) -> list[psutil.Process]:
    """Return the commands of tests that run on a machine, with what they have started."""
    return [process for process in machine.processes() if SLEEPS.search(" ".join(process.cmdline()))]


def test_a_process_on_each_node_has_its_address_and_its_secrets_and_nothing_of_rays(
    cluster: RayCluster, tmp_path: Path
) -> None:
    scenario = """
SHOW = '''
import json, os, platform
names = ["ARL_HOST", "GLOO_SOCKET_IFNAME", "GIVEN", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"]
print(json.dumps([platform.node(), os.getpid(), os.getcwd(), [os.environ[name] for name in names],
    os.environ["HIDDEN"][::-1]]))
print(json.dumps([name for name in os.environ if name.startswith("RAY_")]), flush=True)
'''
async def scenario(launcher):
    tell(nodes=[(node.name, node.address) for node in launcher.nodes])
    for number in range(3):
        lines = []
        process = await launcher.start(
            f"show-{number}", python(SHOW, HIDDEN="s3cret"), Resources(2, ("1", "3"), node=number), lines.append
        )
        await process.finished(60)
        tell(shown=[json.loads(line) for line in lines], name=str(process), pid=process.pid, node=process.node)
"""
    told = Controller(cluster, tmp_path, scenario).end()
    addresses = [cluster.nodes[name].address for name in NODES]
    assert told[0] == {"nodes": [[name, address] for name, address in zip(NODES, addresses, strict=True)]}
    for number, what in enumerate(told[1:4]):
        name = NODES[number]
        (machine, pid, directory, values, hidden), of_ray = what["shown"]
        assert (machine, pid, what["node"]) == (name, what["pid"], number)
        assert what["name"] == f"show-{number} (pid {pid} on {name})"
        assert directory == str(Path.cwd())
        assert values == [addresses[number], "eth0", "by the command", "2", "1,3"]
        assert hidden == "s3cret"[::-1]
        assert of_ray == []
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if "s3cret" in path.read_text()]


def test_the_whole_tree_on_every_node_is_gone_after_the_block(cluster: RayCluster, tmp_path: Path) -> None:
    scenario = f"""
async def scenario(launcher):
    for number in range(3):
        process = await launcher.start(f"tree-{{number}}", python({TREE!r}), Resources(1, node=number))
        await process.ready(60)
    tell(ready=True)
    while not Path({str(tmp_path / "go")!r}).exists():
        await asyncio.sleep(0.1)
"""
    controller = Controller(cluster, tmp_path, scenario)
    controller.wait_for("ready")
    trees = [started_by(cluster.nodes[name]) for name in NODES]
    assert all(len(tree) >= 2 for tree in trees)
    (tmp_path / "go").touch()
    controller.end()
    assert not survivors(process for tree in trees for process in tree)


def test_the_death_of_the_controller_ends_everything_on_every_node(cluster: RayCluster, tmp_path: Path) -> None:
    scenario = f"""
async def scenario(launcher):
    for number in range(3):
        process = await launcher.start(f"child-{{number}}", python({SLEEP!r}), Resources(1, node=number))
    tell(started=True)
    await asyncio.sleep(600)
"""
    controller = Controller(cluster, tmp_path, scenario)
    controller.wait_for("started")
    children = [process for name in NODES for process in started_by(cluster.nodes[name])]
    assert len(children) >= 3
    controller.kill()
    assert not survivors(children)


def test_a_lost_node_is_named_with_role_pid_and_rays_cause_and_nothing_starts_there(
    cluster: RayCluster, tmp_path: Path
) -> None:
    scenario = f"""
async def scenario(launcher):
    beside = await launcher.start("beside", python({SLEEP!r}), Resources(1, node=1))
    speaking = python("print('its last words', flush=True); " + {SLEEP!r})
    lost = await launcher.start("engine-1", speaking, Resources(1, node=2))
    tell(started=True, pid=lost.pid)
    tell(death=str(await lost.died()), code=lost.exit_code, lost=list(launcher.lost_nodes), beside=beside.exit_code)
    try:
        await launcher.start("engine-1", python({SLEEP!r}), Resources(1, node=2))
    except ProcessDied as error:
        tell(refused=str(error))
"""
    controller = Controller(cluster, tmp_path, scenario)
    pid = controller.wait_for("started")["pid"]
    wait_for(lambda: "last words" in (controller.logs / "engine-1.log").read_text(), "its output", 30)
    cluster.kill("n3")
    try:
        told = controller.end()
    finally:
        cluster.revive("n3")
    death = next(what for what in told if "death" in what)
    assert str(death["death"]).startswith(
        f"engine-1 (pid {pid} on n3) was lost with its node n3 (Ray: the actor's node "
    )
    assert "its last words" in str(death["death"])
    assert (death["code"], death["lost"], death["beside"]) == (-9, [2], None)
    assert {"refused": "engine-1 cannot be started: node n3 has failed"} in told


def test_a_process_whose_ray_worker_is_stopped_is_given_up_and_nothing_is_left(
    cluster: RayCluster, tmp_path: Path
) -> None:
    code = f"import os, signal; os.kill(os.getppid(), signal.SIGSTOP); print('ready now', flush=True); {SLEEP}"
    scenario = f"""
async def scenario(launcher):
    process = await launcher.start("engine-0", python({code!r}), Resources(1, node=1))
    tell(started=True)
    while not Path({str(tmp_path / "go")!r}).exists():
        await asyncio.sleep(0.1)
    tell(by_itself=await process.wait_then_kill_group(0.5))
    tell(death=await process.ended(), code=process.exit_code)
    again = await launcher.start("engine-0", python({TREE!r}), Resources(1, node=1))
    tell(ready=await again.ready(60))
"""
    controller = Controller(cluster, tmp_path, scenario)
    controller.wait_for("started")
    wait_for(lambda: bool(started_by(cluster.nodes["n2"])), "the process", 30)
    (tmp_path / "go").touch()
    controller.wait_for("ready", 120)
    told = controller.end()
    assert told[1:4] == [
        {"by_itself": False},
        {"death": told[2]["death"], "code": -9},
        {"ready": "now"},
    ]
    assert str(told[2]["death"]).endswith("on n2) was given up, because its Ray worker on n2 does not answer")
    assert not survivors(started_by(cluster.nodes["n2"]))


def test_exit_codes_signals_and_programs_that_do_not_exist_are_told_as_on_one_machine(
    cluster: RayCluster, tmp_path: Path
) -> None:
    scenario = """
async def scenario(launcher):
    async def death(argv):
        process = await launcher.start("engine-0", Command(argv), Resources(1, node=1))
        return [(await process.ended()).replace(str(process.pid), "P"), process.log_tail()[-40:].strip()]
    tell(deaths=[
        await death((sys.executable, "-c", "print('x' * 300_000); raise SystemExit('no such luck')")),
        await death(("sh", "-c", "kill -ABRT $$")),
        await death(("/no/such/program",)),
    ])
"""
    told = Controller(cluster, tmp_path, scenario).end()
    failed, killed, absent = told[0]["deaths"]
    assert failed[0] == "engine-0 (pid P on n2) exited with code 1"
    assert failed[1].endswith("no such luck")
    assert killed[0] == "engine-0 (pid P on n2) was killed by SIGABRT"
    assert absent == ["engine-0 (pid P on n2) exited with code 127", absent[1]]
    assert "No such file or directory" in absent[1]


def refusal(cluster: RayCluster, *flags: str) -> str:
    """Return the one message with which `arl train` refuses to start."""
    arl = (sys.executable, "-m", "arl.cli", "train", "recipes/quickstart.yaml", "--launcher", "ray", *flags)
    done: subprocess.CompletedProcess[str] = cluster.run(*arl, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_clusters_that_cannot_be_used_are_refused_before_anything_starts(cluster: RayCluster) -> None:
    assert "has 3 alive (n1, n2, n3), and the run needs 4" in refusal(cluster, "--nodes", "4")
    assert "no Ray cluster can be used there" in refusal(cluster, "--address", "10.77.0.1:1", "--nodes", "3")
    assert "must run on a node of the cluster" in refusal(cluster, "--address", "ray://10.77.0.1:10001")
