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
import threading
import time
from typing import IO, Any


def run(programs: str, names: tuple[str, str, int]) -> dict[str, Any]:
    """Run the first program, with the second at the other end of two pipes, and return the fields of its Result."""
    program, peer = json.loads(programs)
    reads, writes, limit = names
    started: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        ours: dict[str, int] = {}
        if peer is not None:
            from_peer, peer_writes = os.pipe()
            peer_reads, to_peer = os.pipe()
            ours = {reads: from_peer, writes: to_peer}
            theirs = {reads: peer_reads, writes: peer_writes}
            started.append(_start(peer, second, theirs, subprocess.DEVNULL))
        process = _start(program, first, ours, subprocess.PIPE)
        started.append(process)
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        texts: dict[str, str] = {}
        readers = [
            threading.Thread(target=_read, args=(process, process.stdout, texts, "stdout", limit)),
            threading.Thread(target=_read, args=(process, process.stderr, texts, "stderr", limit)),
            threading.Thread(target=_feed, args=(process.stdin, program["stdin"]), daemon=True),
        ]
        begin = time.monotonic()
        for reader in readers:
            reader.start()
        outcome = "time"
        with contextlib.suppress(subprocess.TimeoutExpired):
            outcome = "error" if process.wait(program["seconds"]) else "done"
        for each in started:
            _kill(each)
        for reader in readers[:2]:
            reader.join()
    if "full" in texts:
        outcome = texts.pop("full")
    elif outcome == "error" and texts["stderr"].rstrip().rpartition("\n")[2].startswith("MemoryError"):
        outcome = "memory"
    return {"outcome": outcome, "exit_code": process.returncode, "seconds": time.monotonic() - begin, **texts}


def _start(program: dict[str, Any], folder: str, pipes: dict[str, int], output: int) -> "subprocess.Popen[bytes]":
    for name, content in program["files"].items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(base64.b64decode(content))
    limits = {resource.RLIMIT_AS: program["memory_mb"] << 20, resource.RLIMIT_CPU: int(program["seconds"]) + 1}

    def bound() -> None:
        for kind, limit in limits.items():
            resource.setrlimit(kind, (limit, limit))

    process = subprocess.Popen(
        program["command"] or [sys.executable, "-c", program["code"]],
        cwd=folder,
        env={"PATH": os.environ.get("PATH", ""), **{name: str(number) for name, number in pipes.items()}},
        stdin=subprocess.PIPE if output == subprocess.PIPE else subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=tuple(pipes.values()),
        start_new_session=True,
        preexec_fn=bound,  # noqa: PLW1509  # it makes two system calls
    )
    for number in pipes.values():
        os.close(number)
    return process


def _feed(stream: IO[bytes], text: str) -> None:
    with contextlib.suppress(OSError), stream:
        stream.write(text.encode())


def _read(process: "subprocess.Popen[bytes]", stream: IO[bytes], texts: dict[str, str], name: str, limit: int) -> None:
    data = stream.read(limit + 1)
    if len(data) > limit:
        texts["full"] = "output"
        _kill(process)
    texts[name] = data[:limit].decode("utf-8", "replace")


def _kill(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
