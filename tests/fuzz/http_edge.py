"""Send damaged HTTP requests to a real server of the embedded engine, with its key and without, beside honest ones."""

import contextlib
import http.client
import io
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import psutil
from safetensors.torch import load_file, save_file

from arl.config.recipe import TinyModel
from arl.errors import InputError
from arl.models.tiny import make_tiny_model
from tests.engine.conftest import KEY, ServerProcess, start_server
from tests.fuzz.http_requests import Headers, Request, as_json, draw_request
from tests.fuzz.trials import Draw, Edge, Trial

SECONDS = 15.0
BROADCAST_SECONDS = 0.5  # after which a group at a dead address is given up
MOST_GROWTH_MB = 400  # of the server's memory
HONEST = {
    "input_ids": [1, 2, 3],
    "rid": "honest",
    "sampling_params": {"max_new_tokens": 12, "sampling_seed": 5, "ignore_eos": True},
}
COMMANDS = (  # that an honest request notices if they are obeyed
    *("/pause_generation", "/abort_request", "/release_memory_occupation"),
    *("/update_weights_from_disk", "/update_weights_from_distributed"),
)
KEYED = ("Authorization", f"Bearer {KEY}".encode())


class HttpServer:
    """Hold a server, and what it answers an honest request."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._port = int(server.url.rpartition(":")[2])
        self.host: tuple[str, bytes] = ("Host", f"127.0.0.1:{self._port}".encode())
        self._expected = self._receive(self._send(self._honest()))

    def _honest(self) -> bytes:
        return _post("/generate", HONEST, [self.host, KEYED])

    def _send(self, data: bytes, ends: bool = False) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self._port), SECONDS)
        with contextlib.suppress(OSError):  # the server may have answered and closed before it has read all of it
            connection.sendall(data)
            if ends:
                connection.shutdown(socket.SHUT_WR)
        return connection

    def _receive(self, connection: socket.socket) -> tuple[int, bytes]:
        """Return status and body of the last answer; status 0: the connection was closed without one."""
        with connection, contextlib.suppress(http.client.BadStatusLine, ConnectionError):
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            return answer.status, answer.read()
        return 0, b""

    def exchange(self, request: Request) -> tuple[int, bytes]:
        """Send a hostile request beside an honest one, whose answer must be what it always is."""
        honest = self._send(self._honest())
        status, body = self._receive(self._send(request.wire, ends=not request.is_http))
        may_disturb = request.path in COMMANDS and status in (0, 200)
        if may_disturb:
            self.repair()
        if self._receive(honest) != self._expected:
            assert may_disturb, "an honest request was answered otherwise than without an attacker"
            self.check()
        return status, body

    def repair(self) -> None:
        """Undo what the server may rightly have been told to do."""
        for path, body in (("/continue_generation", {}), ("/resume_memory_occupation", {"tags": ["kv_cache"]})):
            self._receive(self._send(_post(path, body, [self.host, KEYED])))
        self._receive(self._send(_post("/resume_memory_occupation", {"tags": ["weights"]}, [self.host, KEYED])))

    def check(self) -> None:
        """Check that an honest request is answered as always."""
        answer = self._receive(self._send(self._honest()))
        assert answer == self._expected, f"{answer} instead of {self._expected}"

    @property
    def resident_mb(self) -> int:
        return int(psutil.Process(self._server.process.pid).memory_info().rss >> 20)


def _post(path: str, body: Any, headers: Headers) -> bytes:
    data = as_json(body)
    own = [("Content-Type", b"application/json"), ("Content-Length", str(len(data)).encode()), ("Connection", b"close")]
    stream = io.BytesIO()
    stream.write(f"POST {path} HTTP/1.1\r\n".encode())
    for name, value in (*headers, *own):
        stream.write(name.encode() + b": " + value + b"\r\n")
    stream.write(b"\r\n" + data)
    return stream.getvalue()


def _is_refused(status: int, body: bytes, request: Request) -> str:
    """Return the message of an error; "": the request was answered."""
    if status == 0:
        assert not request.is_http, "the connection was closed without an answer"
        return "closed"
    if status == 200:
        assert not body.startswith(b'data: {"error"'), f"the stream ends with an error: {body[:300]!r}"
        return ""
    assert 400 <= status < 500, f"status {status}: {body[:300]!r}"
    if not body and request.wire.startswith(b"HEAD"):
        return str(status)
    assert len(body) < 4000, f"an error of {len(body)} bytes"
    return str(json.loads(body)["error"]["message"])


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[HttpServer]:
    """Serve a tiny model. At the end the server must live, answer as always, have kept its memory, and said nothing."""
    model = folder / "model"
    make_tiny_model(TinyModel(), "0123456789abcdef", 0, model)
    log = folder / "log"
    server = start_server(str(model), log, broadcast_seconds=BROADCAST_SECONDS)
    try:
        tried = HttpServer(server)
        before = tried.resident_mb
        yield tried
        tried.repair()
        tried.check()
        after = tried.resident_mb
        print(f"the server's memory: {before} MB before, {after} MB after", file=sys.stderr)
        assert after - before < MOST_GROWTH_MB
    finally:
        code = server.end()
        said = log.read_text()
        assert code == 0, f"the server ended with {code}: {said[-3000:]}"
        assert "Traceback" not in said, said[-3000:]


def make_irregular(folder: Path) -> list[Path]:
    """Make what is no model, and return its paths."""
    folder.mkdir()
    for name in ("fifo", "device", "broken", "directory", "integers"):
        (folder / name).mkdir()
    os.mkfifo(folder / "fifo" / "model.safetensors")
    (folder / "device" / "model.safetensors").symlink_to("/dev/zero")
    (folder / "broken" / "model.safetensors").write_bytes(b"\xff" * 100)
    (folder / "directory" / "model.safetensors").mkdir()
    state = load_file(folder.parent / "model" / "model.safetensors")
    save_file({name: tensor.int() for name, tensor in state.items()}, folder / "integers" / "model.safetensors")
    os.mkfifo(folder / "pipe")
    names = ("pipe", "missing", "fifo", "device", "broken", "directory", "integers")
    return [*(folder / name for name in names), Path("/dev/zero"), Path("/proc/self/mem"), Path("gpt2"), Path("a/b")]


@contextlib.contextmanager
def prepare_http(folder: Path) -> Iterator[Draw]:
    """Try requests of those who know the key."""
    with serving(folder) as server:
        paths = make_irregular(folder / "irregular")

        def draw(random: Random) -> Trial:
            request = draw_request(random, paths, [server.host, KEYED])
            return Trial(request.what, _attempt(server, request))

        yield draw


def _attempt(server: HttpServer, request: Request) -> Callable[[], None]:
    def attempt() -> None:
        status, body = server.exchange(request)
        if refused := _is_refused(status, body, request):
            raise InputError(refused)

    return attempt


@contextlib.contextmanager
def prepare_strangers(folder: Path) -> Iterator[Draw]:
    """Try requests of web pages and of those who do not know the key: none is obeyed, and none is answered."""
    with serving(folder) as server:
        paths = make_irregular(folder / "irregular")

        def draw(random: Random) -> Trial:
            request = draw_request(random, paths, _strange_headers(random, server.host))
            return Trial(request.what, _attempt_strangely(server, request))

        yield draw


def _attempt_strangely(server: HttpServer, request: Request) -> Callable[[], None]:
    def attempt() -> None:
        status, body = server.exchange(request)
        assert status != 200, f"a stranger was answered: {body[:300]!r}"
        raise InputError(_is_refused(status, body, request))

    return attempt


def _strange_headers(random: Random, host: tuple[str, bytes]) -> Headers:
    key = KEY.encode()
    wrong = random.choice(
        (b"", b"Bearer ", b"Bearer " + key[:-1], b"Bearer " + key + b"x", b"bearer", key, b"\xff\xfe")
    )
    page = ("Origin", random.choice((b"http://evil.example", b"null", b"http://localhost:8000")))
    name = random.choice((b"evil.example", b"127.0.0.1.evil.example", b"localhost.evil.example:80", b"10.0.0.1"))
    return random.choice(
        (
            [host],
            [host, ("Authorization", wrong)],
            [host, KEYED, page],
            [host, KEYED, KEYED],
            [("Host", name), KEYED],
            [("Host", name), page],
        )
    )


HTTP = Edge(prepare_http, trials=100)
HTTP_STRANGERS = Edge(prepare_strangers, trials=80)
