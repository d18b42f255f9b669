"""SGLang's server as a child of a run: executed by SGLang's own interpreter, where arl is not; standard library only.

    python arl/engine/sglang/server_process.py --port 0 …     any other flag goes to sglang.launch_server as it is

Its own children and files end with it; it keeps the run's key out of the command line,
prints "ready <url>" once it is healthy, ends with an exit code when SGLang gives up its start, and plugs
arl/engine/sglang/plugin.py in.
"""

import contextlib
import http.client
import os
import runpy
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

LAUNCH = Path(__file__).parents[2] / "launch"  # whose modules need the standard library only
HOST = runpy.run_path(str(LAUNCH / "address.py"))["listening_address"]()
RUN_KEY = runpy.run_path(str(LAUNCH / "child.py"))["RUN_KEY"]
LONGEST_HOME = 70  # bytes; a socket's path has 107, and its folder and name take 33 of them
LOOK_SECONDS = 0.1  # the server runs in this very process, but tells nobody when it is ready


def hold(port: int) -> socket.socket:
    """A socket on `port`, if nobody listens there; 0: on any free one.

    While it is open nobody is given the port by chance, and SGLang, which takes seconds to get there, may still listen.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind((HOST, port))
    except OSError as error:
        sys.exit(f"cannot listen on {HOST}:{port}: {error.strerror}; choose another port")
    return held


def announce(port: int) -> None:
    """Ask for the server's health until it is good; whoever started this process has the deadline."""
    while True:
        connection = http.client.HTTPConnection(HOST, port, timeout=10)  # knows no proxies
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                # A line of its own in one write: SGLang's processes print to the same pipe, text and newline apart.
                os.write(1, f"\nready http://{HOST}:{port}\n".encode())
                return
        except OSError:
            pass  # not listening yet
        finally:
            connection.close()
        time.sleep(LOOK_SECONDS)


def home() -> str:
    """Where temporary files go, if sockets may have so long a path, and if not, where they always may."""
    chosen = tempfile.gettempdir()
    return chosen if len(os.fsencode(chosen)) <= LONGEST_HOME else "/tmp"


def guard(place: Path) -> None:
    """All that this process starts ends with it, and the files of all. SGLang's children see to their own end only when
    they have imported everything, and to no files.

    The guard's session is its own, so that who kills ours spares it, and it is nobody's child: SGLang, when it ends by
    itself, kills its children and theirs. It holds our output open until it is done.
    """
    if os.getpgid(0) != os.getpid():
        os.setpgid(0, 0)
    group = os.getpgid(0)
    ours, theirs = os.pipe()
    if (child := os.fork()) == 0:
        os.setsid()  # before anybody is told that there is a guard
        if os.fork():
            os._exit(0)
        os.close(theirs)
        os.read(ours, 1)  # until the other end is closed, by death
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        shutil.rmtree(place, ignore_errors=True)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(ours)


def plug_in(place: Path) -> None:
    """SGLang, in each of its processes, looks for plugins among what is installed: a distribution in `place`."""
    shutil.copy(Path(__file__).with_name("plugin.py"), place / "arl_plugin.py")
    told = place / "arl_plugin-0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: arl_plugin\nVersion: 0\n")
    (told / "entry_points.txt").write_text("[sglang.srt.plugins]\narl = arl_plugin:register\n")
    sys.path.append(str(place))
    if chosen := os.environ.get("SGLANG_PLUGINS"):
        os.environ["SGLANG_PLUGINS"] = f"{chosen},arl"


def end_with_a_code() -> None:
    """While it starts, a child that fails sends SIGQUIT, on which SGLang kills itself: as if somebody else had."""
    register = signal.signal

    def end(*_: object) -> None:
        os._exit(1)

    def register_all_but_one(number: int, handler: Any) -> Any:
        return register(number, end if number == signal.SIGQUIT else handler)

    signal.signal = register_all_but_one  # type: ignore[assignment]


def main() -> None:
    at = sys.argv.index("--port") + 1
    held = hold(int(sys.argv[at]))
    port = held.getsockname()[1]
    sys.argv[at] = str(port)
    sys.argv += ["--host", HOST, "--api-key", os.environ[RUN_KEY]]
    place = Path(tempfile.mkdtemp(prefix="arl-sglang-", dir=home()))
    guard(place)
    tempfile.tempdir = str(place)  # for SGLang's sockets, which it leaves behind
    # Its workers meet in a file; torch's own store would listen on every interface.
    os.environ["SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE"] = f"file://{place}/store"
    end_with_a_code()
    plug_in(place)
    sys.path[:] = [folder for folder in sys.path if folder != str(Path(__file__).parent)]
    threading.Thread(target=announce, args=(port,), daemon=True).start()
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
