"""Run SGLang's server as a child of a run, under SGLang's own interpreter, where arl is not. Standard library only.

    python arl/engine/sglang/server_process.py --host HOST --port 0 …     other flags go to sglang.launch_server
                                                                          0: any free one

Its children, temporary files and semaphores end with it. It keeps the run's key out of the command line, prints "ready
<url>" once it is healthy, and exits with a code when SGLang gives up its start.
SGLang loads server_plugin.py in each of its processes.
"""

import contextlib
import http.client
import multiprocessing
import os
import runpy
import shutil
import signal
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

ARL = Path(__file__).parents[2]
NETWORK: dict[str, Any] = runpy.run_path(str(ARL / "launch" / "network.py"))
TOOLKIT: dict[str, Any] = runpy.run_path(str(Path(__file__).with_name("cuda_toolkit.py")))
SHARED_MEMORY = Path("/dev/shm")  # where Linux has named semaphores
MAX_HOME = 70  # bytes; a socket's path may have 107, and its folder and name take 33 of them
HEALTH_SECONDS = 0.1  # between two requests: the server runs in this process, but reports to nobody when it is ready


def announce(host: str, port: int, certificate: Path | None) -> None:
    """Ask for the server's health until it is good, then print the ready line. The parent has the deadline."""
    scheme = "http" if certificate is None else "https"
    url = f"{scheme}://{host}:{port}"
    context = None if certificate is None else NETWORK["client_context"](certificate)
    no_proxies = urllib.request.ProxyHandler({})
    opener = urllib.request.build_opener(no_proxies, urllib.request.HTTPSHandler(context=context))
    while True:
        try:
            opener.open(f"{url}/health", timeout=10).close()  # raises unless the answer is good
        except (OSError, http.client.HTTPException):  # not listening yet, or it broke off in the middle of an answer
            time.sleep(HEALTH_SECONDS)
        else:
            # A line of its own in one write: SGLang's processes print to the same pipe, text and newline apart.
            os.write(1, f"\nready {url}\n".encode())
            return


def guard(place: Path) -> None:
    """Fork a guard that kills what this process has started, and removes `place`, as soon as this process has ended.

    SGLang's children look after their own end only when they have imported everything. The guard has a session of its
    own, and another parent, because SGLang kills its children and theirs when it ends by itself.
    """
    if os.getpgid(0) != os.getpid():
        os.setpgid(0, 0)
    group = os.getpgid(0)
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()  # before the parent goes on
        if os.fork():
            os._exit(0)
        os.close(theirs)
        os.read(ours, 1)  # returns when the other end is closed, by the death of this process
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        shutil.rmtree(place, ignore_errors=True)
        for name in os.listdir(SHARED_MEMORY):
            if name.startswith(f"sem.{place.name}-"):
                (SHARED_MEMORY / name).unlink(missing_ok=True)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(ours)


def install_plugin(place: Path) -> None:
    """Make a distribution in `place` that declares arl's plugin: SGLang looks for them among installed packages."""
    plugin = Path(__file__).resolve().with_name("server_plugin.py")
    register = f"runpy.run_path({str(plugin)!r})['register']"
    stub = f"import runpy\nregister = lambda: {register}({str(place)!r})\n"
    (place / "arl_plugin.py").write_text(stub)
    metadata = place / "arl_plugin-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: arl_plugin\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("[sglang.srt.plugins]\narl = arl_plugin:register\n")
    sys.path.append(str(place))
    chosen = os.environ.get("SGLANG_PLUGINS")
    if chosen:
        os.environ["SGLANG_PLUGINS"] = f"{chosen},arl"


def divide_threads(workers: int) -> None:
    """Divide this server's threads between its workers, and on a CPU its cores.

    SGLang gives each worker a NUMA node, and refuses more workers than there are, unless somebody names their cores.
    """
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    os.environ["OMP_NUM_THREADS"] = str(max(threads // workers, 1))
    if "SGLANG_USE_CPU_ENGINE" in os.environ:
        cores = sorted(os.sched_getaffinity(0))
        size = max(len(cores) // workers, 1)
        parts = [cores[worker * size : (worker + 1) * size] or cores for worker in range(workers)]
        named = "|".join(",".join(map(str, part)) for part in parts)
        os.environ.setdefault("SGLANG_CPU_OMP_THREADS_BIND", named)


def exit_with_a_code() -> None:
    """Turn SIGQUIT into exit code 1.

    A child that fails during the start sends SIGQUIT, on which SGLang kills itself, as if somebody else had killed it.
    """
    register = signal.signal

    def leave(*_: object) -> None:
        os._exit(1)

    def register_all_but_one(number: int, handler: Any) -> Any:
        return register(number, leave if number == signal.SIGQUIT else handler)

    signal.signal = register_all_but_one  # type: ignore[assignment]


def main() -> None:
    """Prepare this process for SGLang's server, and run it."""
    if os.environ.get("SGLANG_USE_CPU_ENGINE") != "1":
        TOOLKIT["set_library_path"]()
        TOOLKIT["set_toolkit"]()
    host = sys.argv[sys.argv.index("--host") + 1]
    at = sys.argv.index("--port") + 1
    # While this socket is open the kernel gives its port to nobody. SGLang, which takes seconds to get there, may still
    # listen.
    held = NETWORK["free_listener"](host)
    port = held.getsockname()[1]
    sys.argv[at] = str(port)
    sys.argv += ["--api-key", os.environ["ARL_RUN_KEY"]]
    folder = NETWORK["tls_folder"](host)
    certificate = folder and folder / NETWORK["CERTIFICATE"]
    if certificate is not None:
        sys.argv += ["--ssl-certfile", str(certificate), "--ssl-keyfile", str(folder / NETWORK["PRIVATE_KEY"])]
    is_long = len(os.fsencode(tempfile.gettempdir())) > MAX_HOME
    place = Path(tempfile.mkdtemp(prefix="arl-sglang-", dir="/tmp" if is_long else None))
    guard(place)
    # Python's own process that removes semaphores is killed with the others; the guard finds them by this name.
    multiprocessing.current_process()._config["semprefix"] = f"/{place.name}"  # type: ignore[attr-defined]
    tempfile.tempdir = str(place)  # for SGLang's sockets, which it leaves behind
    # Its workers meet in a file; torch's own store would listen on every interface.
    os.environ["SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE"] = f"file://{place}/store"
    workers = int(sys.argv[sys.argv.index("--tp-size") + 1])
    if workers > 1:
        divide_threads(workers)
    exit_with_a_code()
    install_plugin(place)
    sys.path[:] = [folder for folder in sys.path if folder != str(Path(__file__).parent)]
    threading.Thread(target=announce, args=(host, port, certificate), daemon=True).start()
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
