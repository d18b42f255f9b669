"""Start processes: readiness is awaited, deaths are reported, and nothing outlives the block that started it."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from arl.config.cluster_section import Cluster
from arl.errors import ProcessDied, RecipeError
from arl.launch.base import Command, Resources
from arl.launch.child import PARENT
from arl.launch.local import LocalLauncher
from arl.launch.network import interfaces
from arl.launch.spawn import RUNNER
from arl.run.failures import _first_death as first_death
from tests.processes import survivors

ONE_THREAD = Resources(threads=1)
READY = "print('ready to serve', flush=True); import time; time.sleep(600)"
GRANDCHILD = (
    "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); " + READY
)
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + READY
FAILING = "import sys; print('about to fail', flush=True); sys.exit('no such luck')"


def command(code: str, **environment: str) -> Command:
    return Command((sys.executable, "-c", code), environment)


@pytest.mark.parametrize("code", [READY, GRANDCHILD, STUBBORN])
def test_the_whole_tree_is_gone_after_the_block(tmp_path: Path, code: str) -> None:
    async def main() -> list[psutil.Process]:
        async with LocalLauncher(tmp_path, patience=0.5) as launcher:
            child = await launcher.start("child", command(code), ONE_THREAD)
            assert await child.ready(120) == "to serve"
            tree = psutil.Process(child.pid)
            return [tree, *tree.children(recursive=True)]

    tree = asyncio.run(main())
    assert not survivors(tree)
    assert len(tree) == (2 if code is GRANDCHILD else 1)


def test_processes_listen_on_the_interface_that_the_recipe_names_and_otherwise_on_loopback(tmp_path: Path) -> None:
    for cluster in (Cluster(), Cluster(interface="lo")):
        (node,) = LocalLauncher(tmp_path, 1.0, cluster).nodes
        assert node.address == "127.0.0.1"
    beyond = {name: address for name, address in interfaces().items() if name != "lo"}
    for name, address in beyond.items():
        (node,) = LocalLauncher(tmp_path, 1.0, Cluster(interface=name)).nodes
        assert node.address == address
    with pytest.raises(RecipeError, match=r"cluster\.interface ib7: this machine has no interface ib7 .*there are"):
        LocalLauncher(tmp_path, 1.0, Cluster(interface="ib7"))


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (command(FAILING).argv, "engine-0 .* exited with code 1.*about to fail.*no such luck"),
        (("no-such-program",), "exited with code 127.*no-such-program cannot be started: No such file"),
    ],
)
def test_a_process_that_dies_before_it_is_ready_says_why(tmp_path: Path, argv: tuple[str, ...], words: str) -> None:
    with pytest.raises(ProcessDied, match=f"(?s){words}"):
        asyncio.run(wait_until_ready(tmp_path, Command(argv), 120))


async def wait_until_ready(logs: Path, what: Command, seconds: float) -> None:
    async with LocalLauncher(logs, patience=1) as launcher:
        child = await launcher.start("engine-0", what, ONE_THREAD)
        await child.ready(seconds)


def test_a_death_shows_the_last_lines_of_a_long_log(tmp_path: Path) -> None:
    code = "import sys; print(*range(100_000), sep='\\n'); sys.exit(1)"

    async def main() -> str:
        async with LocalLauncher(tmp_path, patience=1) as launcher:
            child = await launcher.start("engine-0", command(code), ONE_THREAD)
            return str(await child.died())

    lines = [line.strip() for line in asyncio.run(main()).splitlines()]
    assert lines[2:] == [str(number) for number in range(100_000 - 15, 100_000)]


def test_a_process_whose_output_cannot_be_logged_ends_with_that_reason(tmp_path: Path) -> None:
    (tmp_path / "engine-0.log").mkdir()
    with pytest.raises(ProcessDied, match=r"could not be logged \(.*: cannot be written \(Is a directory\)"):
        asyncio.run(wait_until_ready(tmp_path, command(READY), 120))


@pytest.mark.parametrize("after", ["print('more')", "import time; time.sleep(600)"])
def test_a_failure_to_read_a_line_of_output_ends_the_wait_for_its_process_by_its_own_name(
    tmp_path: Path, after: str
) -> None:
    def read(line: str) -> None:
        raise KeyError(line)

    async def main() -> None:
        async with LocalLauncher(tmp_path, patience=1) as launcher:
            child = await launcher.start("warmup", command(f"print('odd', flush=True); {after}"), ONE_THREAD, read)
            assert "arl failed to read a line of its output (KeyError('odd'))" in await child.ended()
            await child.finished(120)

    with pytest.raises(KeyError, match="odd"):
        asyncio.run(main())
    assert (tmp_path / "warmup.log").read_text().startswith("odd\n")


def test_of_several_deaths_the_one_by_a_signal_comes_first(tmp_path: Path) -> None:
    async def main() -> str:
        async with LocalLauncher(tmp_path, patience=1) as launcher:
            failing = await launcher.start("trainer-0", command(FAILING), ONE_THREAD)
            victim = await launcher.start("trainer-1", command(READY), ONE_THREAD)
            await failing.ended()
            await victim.ready(120)
            os.kill(victim.pid, signal.SIGKILL)
            await victim.ended()
            dead = await first_death(launcher.processes)
            assert dead is victim
            return await dead.ended()

    assert re.match(r"trainer-1 \(pid \d+\) was killed by SIGKILL", asyncio.run(main()))


def test_a_process_gets_its_resources_and_its_own_environment_and_no_other_process_does(tmp_path: Path) -> None:
    names = ("NCCL_DEBUG", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "ARL_HOST")
    code = f"import os; print('ready', *(os.environ.get(name, '-') for name in {names}), flush=True)"

    async def main() -> list[str]:
        async with LocalLauncher(tmp_path, patience=1) as launcher:
            engine = command(code, NCCL_DEBUG="INFO", OMP_NUM_THREADS="ignored")
            first = await launcher.start("engine-0", engine, Resources(threads=3, devices=("1", "2")))
            second = await launcher.start("trainer-0", command(code), ONE_THREAD)
            return [await first.ready(120), await second.ready(120)]

    assert asyncio.run(main()) == ["INFO 3 1,2 127.0.0.1", "- 1  127.0.0.1"]


def test_a_grandchild_that_escapes_with_the_pipe_does_not_hold_up_the_end(tmp_path: Path) -> None:
    escape = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], "
        "start_new_session=True); print('ready', p.pid, flush=True)"
    )

    async def main() -> int:
        async with LocalLauncher(tmp_path, patience=1) as launcher:
            child = await launcher.start("child", command(escape), ONE_THREAD)
            escaped = int(await child.ready(120))
            await child.finished(120)
            return escaped

    psutil.Process(asyncio.run(asyncio.wait_for(main(), 300))).kill()


def test_children_die_with_a_killed_parent_whatever_they_run(tmp_path: Path) -> None:
    parent = (
        "import asyncio, sys; from pathlib import Path\n"
        "from arl.launch.base import Command, Resources; from arl.launch.local import LocalLauncher\n"
        "async def main():\n"
        f"    async with LocalLauncher(Path({str(tmp_path)!r}), 1) as launcher:\n"
        "        sleeper = Command(('sh', '-c', 'echo ready now; exec sleep 600'))\n"
        "        c = await launcher.start('child', sleeper, Resources(1))\n"
        "        await c.ready(120); print(c.pid, flush=True); await asyncio.sleep(600)\n"
        "asyncio.run(main())"
    )

    async def main() -> None:
        process = await asyncio.create_subprocess_exec(*command(parent).argv, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        orphan = psutil.Process(int(await process.stdout.readline()))
        process.kill()
        await process.wait()
        assert not survivors([orphan])

    asyncio.run(main())


def test_a_process_whose_parent_has_gone_before_it_could_ask_leaves_at_once() -> None:
    runner = [*RUNNER, "sleep", "600"]
    orphan = {**os.environ, PARENT: "1"}
    done = subprocess.run(runner, env=orphan, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr.strip() == "the parent process 1 is gone"
