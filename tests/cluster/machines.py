"""Make machines out of Linux namespaces: each has a host name, an address, processes and shared memory of its own.

    switch: a network namespace with a bridge
       │ veth pairs
       ├── Machine n1: namespaces of pid, network, host name, mounts and IPC; process 1 is the script INIT
       ├── Machine n2
       └── …

Nothing has a name outside of these namespaces. The kernel removes a namespace, its links and mounts when its last
process ends, and every machine's process 1 ends with the process that made it. So a test that is killed leaves nothing.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from arl.launch.child import PARENT
from arl.launch.spawn import RUNNER

SUBNET = "10.77.0"
INTERFACE = "eth0"
NAMESPACES = ("--net", "--uts", "--mount", "--ipc", "--pid")
TOOLS = ("unshare", "nsenter", "ip", "mount", "hostname")
START_SECONDS = 30.0
# Process 1 of a machine: it reaps orphans, and ends when its input does, because whoever holds the other end has ended.
# The gloo and c10d of torch look up the name of each peer; a name server that nobody reaches would cost seconds. What
# two machines never share is mounted anew. Everything else is the host's, and so a file system that all of them see.
INIT = """
set -e
hostname "$1"
mount --bind "$2/hosts" /etc/hosts
mount --bind "$2/resolv.conf" /etc/resolv.conf
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
ip link set lo up
echo up
read -r line
"""


def missing_for_machines() -> str | None:
    """Return why this host cannot make machines; None: it can."""
    if os.geteuid() != 0:
        return "namespaces of machines are made by root only"
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        return f"{', '.join(absent)} not installed: apt-get install util-linux iproute2 mount hostname"
    tried = subprocess.run(["unshare", *NAMESPACES, "--fork", "true"], capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"this host makes no namespaces: {tried.stderr.strip()}"


@contextlib.contextmanager
def started(*argv: str) -> Iterator[int]:
    """Start a process that the kernel kills when this one dies, wait until it is up, and yield its id."""
    process = subprocess.Popen(
        [*RUNNER, *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, PARENT: str(os.getpid())},
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n", argv
        yield process.pid
    finally:
        process.kill()
        process.communicate(timeout=START_SECONDS)


def in_network(pid: int, *argv: str) -> None:
    """Run a command in the network namespace of process `pid`."""
    subprocess.run(["nsenter", f"--net=/proc/{pid}/ns/net", *argv], check=True, timeout=START_SECONDS)


class Machine:
    """Run processes in the namespaces of one machine; it can be killed and started again.

    Args:
        name: its host name.
        number: last part of its address.
        switch: id of a process in the network namespace of the switch.
        files: directory that holds the hosts and resolv.conf files of all machines.
    """

    def __init__(self, name: str, number: int, switch: int, files: Path) -> None:
        self.name = name
        self.address = f"{SUBNET}.{number}"
        self.environment: Mapping[str, str] = {}  # of every process
        self.pid = 0  # of its process 1, as the host counts; 0: it is off
        self._switch = switch
        self._files = files
        self._running = contextlib.ExitStack()

    def start(self) -> None:
        """Switch it on: its process 1 runs, and its link is up."""
        init = ("bash", "-c", INIT, "init", self.name, str(self._files))
        isolated = ("unshare", *NAMESPACES, "--mount-proc", "--fork", "--kill-child")
        outer = self._running.enter_context(started(*isolated, *init))
        (child,) = psutil.Process(outer).children()
        self.pid = child.pid
        cable = f"to-{self.name}-{self.pid}"[:15]
        veth = f"ip link add {cable} type veth peer name {INTERFACE} netns {self.pid}"
        in_network(self._switch, *veth.split())
        in_network(self._switch, *f"ip link set {cable} master bridge up".split())
        in_network(self.pid, *f"ip address add {self.address}/24 dev {INTERFACE}".split())
        in_network(self.pid, *f"ip link set {INTERFACE} up".split())

    def entering(self, argv: Sequence[str]) -> list[str]:
        """Return the command that runs `argv` on this machine, in the working directory of this process."""
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        return ["nsenter", "--target", str(self.pid), *NAMESPACES, "env", "-C", os.getcwd(), *variables, *argv]

    def run(self, *argv: str, seconds: float = 60.0, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; its output is captured."""
        done = subprocess.run(self.entering(argv), capture_output=True, text=True, timeout=seconds, check=False)
        assert not check or done.returncode == 0, f"{argv} on {self.name}: {done}"
        return done

    def start_process(self, argv: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Start a process whose output is appended to `log`; it ends with the machine."""
        with log.open("ab") as output:
            return subprocess.Popen(
                self.entering(argv),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def processes(self) -> list[psutil.Process]:
        """Return everything that runs in the machine, process 1 included. The ids are the host's."""
        own = _pid_namespace(self.pid)
        return [process for process in psutil.process_iter() if self.pid and _pid_namespace(process.pid) == own]

    def kill(self) -> None:
        """Kill everything on it, as a power failure does: no connection is closed for the other side to see."""
        if self.pid:
            with contextlib.suppress(subprocess.CalledProcessError):  # the link of a dead machine is gone
                in_network(self.pid, "ip", "link", "set", INTERFACE, "down")
            self._running.close()
            self.pid = 0


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
    lines = ["127.0.0.1 localhost", *(f"{SUBNET}.{number} {name}" for number, name in enumerate(names, 1))]
    (directory / "hosts").write_text("\n".join(lines) + "\n")
    (directory / "resolv.conf").write_text("# nobody is asked\n")
    bridge = "ip link add bridge type bridge; ip link set bridge up; echo up; read line"
    with started("unshare", "--net", "sh", "-c", bridge) as switch, contextlib.ExitStack() as stack:
        made = {name: Machine(name, number, switch, directory) for number, name in enumerate(names, 1)}
        for machine in made.values():
            stack.callback(machine.kill)
            machine.start()
        yield made
