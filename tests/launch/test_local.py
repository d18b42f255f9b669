"""Start processes: readiness is awaited, deaths are reported, and nothing outlives the block that started it."""

import asyncio
import sys
from pathlib import Path

import psutil
import pytest

from arl.config.cluster_section import Cluster
from arl.errors import ProcessDied, RecipeError
from arl.launch.base import Command, Resources
from arl.launch.local import LocalLauncher
from tests.processes import survivors

ONE_THREAD = Resources(threads=1)
READY = "print('ready to serve', flush=True); import time; time.sleep(600)"
GRANDCHILD = (
    "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); " + READY
)
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + READY
FAILING = "import sys; print('about to fail', flush=True); sys.exit('no such luck')"
LONG = "import sys; print(*range(100_000), sep='\\n'); sys.exit(1)"


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
    with pytest.raises(RecipeError, match=r"cluster\.interface ib7: this machine has no interface ib7 .*there are"):
        LocalLauncher(tmp_path, 1.0, Cluster(interface="ib7"))


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (command(FAILING).argv, "engine-0 .* exited with code 1.*about to fail.*no such luck"),
        (command(LONG).argv, r"code 1\.\nThe end of .*engine-0\.log:\n    99985\n.*\n    99999$"),
        (("no-such-program",), "exited with code 127.*no-such-program cannot be started: No such file"),
    ],
)
def test_a_process_that_dies_before_it_is_ready_says_why(tmp_path: Path, argv: tuple[str, ...], words: str) -> None:
    with pytest.raises(ProcessDied, match=f"(?s){words}"):
        asyncio.run(wait_until_ready(tmp_path, Command(argv)))


def test_a_process_whose_output_cannot_be_logged_ends_with_that_reason(tmp_path: Path) -> None:
    (tmp_path / "engine-0.log").mkdir()
    with pytest.raises(ProcessDied, match=r"could not be logged \(.*: cannot be written \(Is a directory\)"):
        asyncio.run(wait_until_ready(tmp_path, command(READY)))


async def wait_until_ready(logs: Path, what: Command) -> None:
    async with LocalLauncher(logs, patience=1) as launcher:
        child = await launcher.start("engine-0", what, ONE_THREAD)
        await child.ready(120)


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


@pytest.mark.parametrize(
    ("end", "how"), [("kill -9 $$", "was killed by SIGKILL"), ("exit 137", "exited with code 137")]
)
def test_a_process_that_was_killed_names_memory_and_the_fields_that_lower_it(
    end: str, how: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with LocalLauncher(tmp_path, 1) as launcher:
            child = await launcher.start("engine-0", Command(("sh", "-c", end)), ONE_THREAD)
            said = await child.ended()
        assert f"{how}, perhaps because memory was short (" in said
        assert said.endswith("); lower engine.slots or engine.replicas")

    asyncio.run(main())


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
