"""Make an environment with a fake SGLang, whose server fails as `--fault` in engine.args says."""

import stat
import sys
from pathlib import Path

from arl.launch.torch_build import TorchBuild

SERVER = """
import os, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

fault = sys.argv[sys.argv.index("--fault") + 1]
if fault == "refuse":
    raise ValueError("Model architectures ['FancyForCausalLM'] are not supported")

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.answer(503 if fault == "deaf" else 200, b'{"model_path": "m", "weight_version": "%s"}' % version)

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        print("fake scheduler: got", self.path, flush=True)
        if fault == "die":
            print("fake scheduler: out of memory", flush=True)
            os._exit(9)

version = sys.argv[sys.argv.index("--weight-version") + 1].encode()
assert sys.argv[sys.argv.index("--api-key") + 1]

def talk():
    while True:
        os.write(1, b"half a line, ")
        time.sleep(0.001)

if fault == "talk":
    threading.Thread(target=talk, daemon=True).start()
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


def make_fake_sglang(directory: Path, version: str = "0.5.20", requires: str = "") -> str:
    """Return the interpreter of the environment. Its SGLang may require a package that is not there."""
    site = directory / "site"
    (site / "sglang").mkdir(parents=True)
    (site / "sglang" / "__init__.py").touch()
    (site / "sglang" / "launch_server.py").write_text(SERVER)
    info = site / f"sglang-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    if requires:
        with (info / "METADATA").open("a") as metadata:
            metadata.write(f"Requires-Dist: {requires}\n")
    python = directory / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return str(python)


def pretend_machine(directory: Path, python: tuple[int, int, int], glibc: str) -> None:
    """Have the interpreter of the environment in `directory` say that it is this Python on this glibc."""
    version = ".".join(map(str, python))
    (directory / "site" / "sitecustomize.py").write_text(
        f"import platform, sys\nsys.version_info = {(*python, 'final', 0)}\n"
        f"platform.python_version = lambda: {version!r}\nplatform.libc_ver = lambda: ('glibc', {glibc!r})\n"
    )


def add_fake_torch(directory: Path, build: TorchBuild) -> None:
    """Give the environment in `directory` a torch that says no more than which build it is."""
    torch = directory / "site" / "torch"
    (torch / "cuda").mkdir(parents=True)
    (torch / "__init__.py").write_text(f"__version__ = {build.torch!r}\nfrom torch import cuda, version\n")
    (torch / "version.py").write_text(f"cuda = {build.cuda!r}\n")
    (torch / "cuda" / "__init__.py").write_text("from torch.cuda import nccl\n")
    body = f"return {build.nccl!r}" if build.nccl else "raise AttributeError('_nccl_version')"
    (torch / "cuda" / "nccl.py").write_text(f"def version():\n    {body}\n")
