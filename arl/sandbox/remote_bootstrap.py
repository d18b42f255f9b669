"""Run a program and its peer as processes, by the standard library: this file is sent to services as code."""

import base64
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from typing import IO, Any

DISK_BYTES = 64 << 20  # of a file that a program writes


def run(programs: str, reads: str, writes: str, limit: int) -> dict[str, Any]:
    """Run the first program, with the second at the other end of two pipes, and return the fields of its Result."""
    program, peer = json.loads(programs)
    with contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(tempfile.TemporaryDirectory()) for _ in range(2))
        stdin, stdout, stderr = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        stdin.write(program["stdin"].encode("utf-8", "replace"))
        stdin.seek(0)
        from_peer, peer_writes = os.pipe()
        peer_reads, to_peer = os.pipe()
        started = []
        if peer is not None:
            theirs = {reads: peer_reads, writes: peer_writes}
            started.append(_start(peer, second, theirs, (subprocess.DEVNULL,) * 3))
        os.close(peer_reads)
        os.close(peer_writes)
        process = _start(program, first, {reads: from_peer, writes: to_peer}, (stdin, stdout, stderr))
        started.append(process)
        os.close(from_peer)
        os.close(to_peer)
        begin = time.monotonic()
        outcome = "time"
        with contextlib.suppress(subprocess.TimeoutExpired):
            outcome = "error" if process.wait(program["seconds"]) else "done"
        seconds = time.monotonic() - begin
        for each in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(each.pid, signal.SIGKILL)
            each.wait()
        texts = {}
        for name, file in (("stdout", stdout), ("stderr", stderr)):
            file.seek(0)
            data = file.read(limit + 1)
            outcome = "output" if len(data) > limit else outcome
            texts[name] = data[:limit].decode("utf-8", "replace")
    if outcome == "error" and texts["stderr"].rstrip().rpartition("\n")[2].startswith("MemoryError"):
        outcome = "memory"
    return {"outcome": outcome, "exit_code": process.returncode, "seconds": seconds, **texts}


def _start(
    program: dict[str, Any], folder: str, pipes: dict[str, int], streams: tuple[IO[bytes] | int, ...]
) -> "subprocess.Popen[bytes]":
    for name, content in program["files"].items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(base64.b64decode(content))

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (program["memory_mb"] << 20,) * 2)
        resource.setrlimit(resource.RLIMIT_CPU, (int(program["seconds"]) + 1,) * 2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (DISK_BYTES,) * 2)

    stdin, stdout, stderr = streams
    return subprocess.Popen(
        program["command"] or [sys.executable, "-c", program["code"]],
        cwd=folder,
        env={"PATH": os.environ.get("PATH", ""), **{name: str(number) for name, number in pipes.items()}},
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        pass_fds=tuple(pipes.values()),
        start_new_session=True,
        preexec_fn=bound,  # noqa: PLW1509  # it makes three system calls
    )
