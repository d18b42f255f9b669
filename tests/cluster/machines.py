"""Make machines out of Linux namespaces: each has a host name, an address, processes and shared memory of its own.

    Switch: a network namespace with a bridge
       │ veth pairs
       ├── Machine n1: namespaces of pid, network, host name, mounts and IPC; process 1 is machine_init.py
       ├── Machine n2
       └── …

Nothing has a name outside of these namespaces. The kernel removes a namespace, its links and mounts when its last
process ends, and every machine's process 1 ends with the process that made it. So a test that is killed leaves nothing.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from arl.launch.child import PARENT
from arl.launch.spawn import RUNNER

BRIDGE = "bridge"
SUBNET = "10.77.0"
INTERFACE = "eth0"
INIT = Path(__file__).with_name("machine_init.py")
NAMESPACES = ("--net", "--uts", "--mount", "--ipc", "--pid", "--mount-proc")
TOOLS = ("unshare", "nsenter", "ip", "mount")
START_SECONDS = 30.0


def missing_for_machines() -> str | None:
    """Return why this host cannot make machines; None: it can."""
    if os.geteuid() != 0:
        return "namespaces of machines are made by root only"
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        return f"{', '.join(absent)} not installed: apt-get install util-linux iproute2 mount"
    tried = subprocess.run(["unshare", *NAMESPACES, "--fork", "true"], capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"this host makes no namespaces: {tried.stderr.strip()}"


def start_with_us(argv: Sequence[str]) -> subprocess.Popen[str]:
    """Start a process that the kernel kills when this one dies, with pipes to its input and from its output."""
    return subprocess.Popen(
        [*RUNNER, *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, PARENT: str(os.getpid())},
        start_new_session=True,
    )


def wait_until_up(process: subprocess.Popen[str], what: str) -> None:
    """Wait for the line `up` of a process that has just started."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.strip() == "up", f"{what} did not come up: {line!r}"


class Switch:
    """Connect machines. Used as a context; `connect` plugs a machine in."""

    def __init__(self) -> None:
        self._holder: subprocess.Popen[str] | None = None
        self._num_cables = 0

    def __enter__(self) -> "Switch":
        self._holder = start_with_us(["unshare", "--net", "sh", "-c", "echo up; read line"])
        wait_until_up(self._holder, "the switch")
        self.run("ip", "link", "add", BRIDGE, "type", "bridge")
        self.run("ip", "link", "set", BRIDGE, "up")
        return self

    def __exit__(self, *_: object) -> None:
        end_process(self._holder)

    @property
    def pid(self) -> int:
        """Return the id of a process in the switch's network namespace."""
        assert self._holder is not None
        return self._holder.pid

    def run(self, *argv: str) -> str:
        """Run a command in the switch's network namespace, and return its output."""
        entered = ["nsenter", f"--net=/proc/{self.pid}/ns/net", *argv]
        return subprocess.run(entered, check=True, capture_output=True, text=True, timeout=START_SECONDS).stdout

    def connect(self, pid: int, address: str) -> str:
        """Give the network namespace of process `pid` an interface with this address; return the cable's name."""
        self._num_cables += 1
        cable = f"cable{self._num_cables}"
        self.run("ip", "link", "add", cable, "type", "veth", "peer", "name", INTERFACE, "netns", str(pid))
        self.run("ip", "link", "set", cable, "master", BRIDGE, "up")
        inside = ["nsenter", f"--net=/proc/{pid}/ns/net", "ip"]
        subprocess.run([*inside, "address", "add", f"{address}/24", "dev", INTERFACE], check=True)
        subprocess.run([*inside, "link", "set", INTERFACE, "up"], check=True)
        return cable


class Machine:
    """Run processes in the namespaces of one machine; it can be cut off, killed and started again.

    Args:
        name: its host name.
        number: last part of its address.
        switch: which it is connected to.
        files: directory that holds the hosts and resolv.conf files of all machines.
    """

    def __init__(self, name: str, number: int, switch: Switch, files: Path) -> None:
        self.name = name
        self.address = f"{SUBNET}.{number}"
        self._switch = switch
        self._files = files
        self._unshare: subprocess.Popen[str] | None = None
        self._pid: int | None = None
        self._cable = ""

    @property
    def pid(self) -> int:
        """Return the id of its process 1, as the host counts."""
        assert self._pid is not None, f"{self.name} is off"
        return self._pid

    @property
    def is_on(self) -> bool:
        """Return whether it was started, and not killed since."""
        return self._pid is not None

    def start(self) -> None:
        """Switch it on: its process 1 runs, and its link is up."""
        hosts = str(self._files / "hosts")
        resolv = str(self._files / "resolv.conf")
        init = [sys.executable, "-I", "-S", str(INIT), self.name, hosts, resolv]
        self._unshare = start_with_us(["unshare", *NAMESPACES, "--fork", "--kill-child", *init])
        wait_until_up(self._unshare, self.name)
        (child,) = psutil.Process(self._unshare.pid).children()
        self._pid = child.pid
        self._cable = self._switch.connect(self._pid, self.address)

    def entering(self, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> list[str]:
        """Return the command that runs `argv` on this machine, in the working directory of this process."""
        variables = [f"{name}={value}" for name, value in (environment or {}).items()]
        namespaces = ["--net", "--uts", "--mount", "--ipc", "--pid"]
        return ["nsenter", "--target", str(self.pid), *namespaces, "env", "-C", os.getcwd(), *variables, *argv]

    def run(
        self, *argv: str, seconds: float = 60.0, check: bool = True, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; its output is captured."""
        done = subprocess.run(
            self.entering(argv, environment), capture_output=True, text=True, timeout=seconds, check=False
        )
        assert not check or done.returncode == 0, (
            f"{argv} on {self.name}: {done.returncode}\n{done.stdout}{done.stderr}"
        )
        return done

    def start_process(
        self, argv: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process whose output is appended to `log`; it ends with the machine."""
        with log.open("ab") as output:
            return subprocess.Popen(
                self.entering(argv, environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def processes(self) -> list[psutil.Process]:
        """Return everything that runs in the machine, process 1 included. The ids are the host's."""
        if self._pid is None:
            return []
        namespace = _pid_namespace(self.pid)
        return [process for process in psutil.process_iter() if _pid_namespace(process.pid) == namespace]

    def cut(self) -> None:
        """Take its link down: nothing arrives and nothing leaves, and no connection is closed."""
        self._switch.run("ip", "link", "set", self._cable, "down")

    def kill(self) -> None:
        """Kill everything on it, as a power failure does: no connection is closed for the other side to see."""
        if self._pid is None:
            return
        with contextlib.suppress(subprocess.CalledProcessError):  # the link of a dead machine is gone
            self.cut()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, 9)
        end_process(self._unshare)
        self._pid = None


def end_process(process: subprocess.Popen[str] | None) -> None:
    """Kill a process that `start_with_us` has started, and reap it."""
    if process is None:
        return
    process.kill()
    process.communicate(timeout=START_SECONDS)


def _pid_namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


@contextlib.contextmanager
def machines(names: Sequence[str], directory: Path) -> Iterator[dict[str, Machine]]:
    """Yield running machines by name, which reach each other by name and address.

    Args:
        directory: gets the files that they share.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with Switch() as switch, contextlib.ExitStack() as stack:
        made = {name: Machine(name, number, switch, directory) for number, name in enumerate(names, 1)}
        lines = ["127.0.0.1 localhost", *(f"{machine.address} {name}" for name, machine in made.items())]
        (directory / "hosts").write_text("\n".join(lines) + "\n")
        (directory / "resolv.conf").write_text("# nobody is asked\n")
        for machine in made.values():
            stack.callback(machine.kill)
            machine.start()
        yield made
