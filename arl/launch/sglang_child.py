"""SGLang's server as a child of a run: executed by SGLang's own interpreter, where arl is not; standard library only.

    python arl/launch/sglang_child.py --port 0 …     any other flag goes to sglang.launch_server as it is

It dies with its parent, keeps the run's key out of the command line, and prints "ready <url>" once it is healthy.
"""

import http.client
import os
import runpy
import socket
import sys
import threading
import time
from pathlib import Path

HOST = "127.0.0.1"
LOOK_SECONDS = 0.1  # the server runs in this very process, but tells nobody when it is ready


def free_port(port: int) -> int:
    """`port` if nobody listens there; 0: any free one."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            sys.exit(f"cannot listen on {HOST}:{port}: {error.strerror}; choose another port")
        return int(probe.getsockname()[1])


def announce(port: int) -> None:
    """Ask for the server's health until it is good; whoever started this process has the deadline."""
    while True:
        connection = http.client.HTTPConnection(HOST, port, timeout=10)  # knows no proxies
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                print(f"ready http://{HOST}:{port}", flush=True)
                return
        except OSError:
            pass  # not listening yet
        finally:
            connection.close()
        time.sleep(LOOK_SECONDS)


def main() -> None:
    child = runpy.run_path(str(Path(__file__).parent.parent / "child.py"))
    child["die_with_parent"]()
    sys.path[:] = [folder for folder in sys.path if folder != str(Path(__file__).parent)]
    at = sys.argv.index("--port") + 1
    port = free_port(int(sys.argv[at]))
    sys.argv[at] = str(port)
    sys.argv += ["--host", HOST, "--api-key", os.environ[child["RUN_KEY"]]]
    threading.Thread(target=announce, args=(port,), daemon=True).start()
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":  # its own children import this file again
    main()
