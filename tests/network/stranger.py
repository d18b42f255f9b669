"""Send messages to ports without the run's key, and report what came back. Its own process, on a host of its own.

python stranger.py  < {"places": [[host, port], …], "count": N, "seed": S, "replays": {"port": ["a stream in hex"]}}
                    > {"sent": N, "answers": {"kind": ["bytes", …]}}
"""

import contextlib
import json
import random
import socket
import ssl
import struct
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

SECONDS = 0.2  # for an answer
LONGEST = 4096  # bytes of an answer that are read
ZMTP = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01"
HTTP_PATHS = ("/generate", "/abort_request", "/pause_generation", "/update_weights_from_disk", "/model_info", "/health")
VALIDATE = b"\0" + struct.pack("<I", 0x3C85F7CE)  # of a TCPStore
QUERIES = 20
CONNECTIONS = 16  # at once
ROUNDS = 50  # of another try to be refused in words


def exchange(place: tuple[str, int], data: bytes, wrap: ssl.SSLContext | None = None) -> bytes:
    """Send `data`, and return what comes back."""
    answer = b""
    with socket.create_connection(place, timeout=10) as plain:
        plain.settimeout(SECONDS)
        connection = wrap.wrap_socket(plain) if wrap else plain
        with contextlib.suppress(OSError), connection:
            connection.sendall(data)
            while len(answer) < LONGEST and (piece := connection.recv(LONGEST)):
                answer += piece
                if b"\r\n\r\n" in answer:
                    break
    return answer


def without_check() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Stranger:
    """Know kinds of messages, each a function of a place."""

    def __init__(self, seed: int, replays: dict[int, list[bytes]]) -> None:
        self._random = random.Random(seed)
        self._replays = replays
        self._tls = without_check()
        self.kinds: dict[str, Callable[[tuple[str, int]], bytes]] = {
            "garbage": lambda place: exchange(place, self.garbage()),
            "replay": self._replay,
            "http": lambda place: exchange(place, self.request()),
            "https": lambda place: exchange(place, self.request(), self._tls),
            "zmtp null": lambda place: exchange(place, self.zmtp(b"NULL")),
            "zmtp curve": lambda place: exchange(place, self.zmtp(b"CURVE")),
            "store": lambda place: exchange(place, self.store()),
            "store in tls": lambda place: exchange(place, b"f" * 48 + self.store(), self._tls),
            "garbage in tls": lambda place: exchange(place, self.garbage(), self._tls),
        }

    def send(self, kind: str, place: tuple[str, int]) -> bytes:
        try:
            return self.kinds[kind](place)
        except (ssl.SSLError, ConnectionError, TimeoutError) as error:
            return type(error).__name__.encode()

    def garbage(self) -> bytes:
        return self._random.randbytes(self._random.choice((1, 13, 64, 1000, 20_000)))

    def _replay(self, place: tuple[str, int]) -> bytes:
        streams = self._replays.get(place[1])
        return exchange(place, self._random.choice(streams)) if streams else b""

    def request(self) -> bytes:
        path = self._random.choice(HTTP_PATHS)
        body = b'{"abort_all": true, "mode": "abort", "model_path": "/", "input_ids": [1], "rid": "a"}'
        head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return (
            head.encode() + b"Authorization: Bearer " + self._random.randbytes(24).hex().encode() + b"\r\n\r\n" + body
        )

    def zmtp(self, mechanism: bytes) -> bytes:
        """A greeting, a command of this mechanism, and a frame that claims to be very long."""
        greeting = ZMTP[:12] + mechanism.ljust(20, b"\0") + b"\0" * 32
        body = b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER" if mechanism == b"NULL" else b"\x05HELLO\x01\0"
        body = body.ljust(200, b"\0") if mechanism == b"CURVE" else body
        hello = b"\x84\xa4type\xa5Hello\xa4role\xa7trainer\xa4rank\0\xa3pid\1" if mechanism == b"NULL" else b""
        command = b"\x04" + bytes([len(body)]) + body
        return greeting + command + b"\0" + bytes([len(hello)]) + hello + b"\x02" + struct.pack(">Q", 1 << 40)

    def store(self) -> bytes:
        """Queries of a TCPStore: every number with a key and a value."""
        key = b"init/"
        queries = b""
        for number in range(1, QUERIES):
            queries += bytes([number]) + struct.pack("<Q", len(key)) + key + struct.pack("<Q", 1) + b"x"
        return VALIDATE + queries


def main() -> None:
    given = json.load(sys.stdin)
    replays = {int(port): [bytes.fromhex(one) for one in streams] for port, streams in given["replays"].items()}
    places = [(host, port) for host, port in given["places"]]
    answers: dict[str, set[str]] = {}

    def send(i: int) -> None:
        stranger = Stranger(given["seed"] + i, replays)
        kinds = list(stranger.kinds)
        kind = kinds[i // len(places) % len(kinds)]
        answer = stranger.send(kind, places[i % len(places)])
        answers.setdefault(kind, set()).add(answer.decode("latin-1"))

    with ThreadPoolExecutor(CONNECTIONS) as threads:
        list(threads.map(send, range(given["count"])))
    patient = Stranger(given["seed"], replays)
    for _ in range(ROUNDS):  # a busy server may have been too slow for every one of them
        if any(answer.startswith("HTTP") for answer in answers["https"]):
            break
        answers["https"] |= {patient.send("https", place).decode("latin-1") for place in places}
    json.dump({"sent": given["count"], "answers": {kind: sorted(found) for kind, found in answers.items()}}, sys.stdout)


if __name__ == "__main__":
    main()
