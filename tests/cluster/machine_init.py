"""Be process 1 of a machine made of namespaces: give it its name and its own directories, then reap orphans.

    unshare --pid --net --uts --mount --ipc … python -I -S machine_init.py NAME HOSTS RESOLV

It prints `up` when the machine can be used, and ends when its standard input does, because whoever holds the other end
has ended. When process 1 ends, the kernel kills everything else in the machine. Only the standard library is used.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence

# What two machines never share. Everything else is the host's, and so a file system that all of them see.
OWN_DIRECTORIES = ("/run", "/dev/shm")


def mount(*arguments: str) -> None:
    """Call mount(8)."""
    subprocess.run(["mount", *arguments], check=True)


def set_up(name: str, hosts: str, resolv: str) -> None:
    """Give the machine its host name, its directories and its view of names and addresses."""
    socket.sethostname(name)
    mount("--bind", hosts, "/etc/hosts")
    # The gloo and c10d of torch look up the name of each peer; a name server that nobody reaches would cost seconds.
    mount("--bind", resolv, "/etc/resolv.conf")
    for directory in OWN_DIRECTORIES:
        mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", directory)
    os.chmod("/dev/shm", 0o1777)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def end_with_input() -> None:
    """Wait for the end of standard input, then end the machine."""
    sys.stdin.buffer.read()
    os._exit(0)


def reap_forever() -> None:
    """Reap every process that becomes an orphan. Waits for deaths; the end of the machine ends it."""
    while True:
        signal.sigwait({signal.SIGCHLD})
        reap_dead()


def reap_dead() -> None:
    """Reap all orphans that are dead by now."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def main(arguments: Sequence[str]) -> None:
    """Run the machine until its input ends."""
    name, hosts, resolv = arguments
    set_up(name, hosts, resolv)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # before a thread starts, which would take some of them
    threading.Thread(target=end_with_input, daemon=True).start()
    print("up", flush=True)
    reap_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
