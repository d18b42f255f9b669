"""Capture what crosses a bridge, and put the streams of its connections together again."""

import contextlib
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

Place = tuple[str, int]  # address and port
Streams = dict[tuple[Place, Place], bytes]  # by sender and receiver
TCP = 6
IPV4 = b"\x08\x00"
SYN = 0x02


@contextlib.contextmanager
def captured(interface: str, file: Path) -> Iterator[None]:
    """Write every packet of `interface` to `file` while the block runs."""
    argv = ["tcpdump", "-i", interface, "-w", str(file), "-U", "--immediate-mode", "-s", "0", "-B", "65536", "tcp"]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as tcpdump:
        assert tcpdump.stderr is not None
        for line in tcpdump.stderr:
            if "listening on" in line:
                break
        try:
            yield
        finally:
            tcpdump.terminate()
            said = tcpdump.stderr.read()
    assert "\n0 packets dropped by kernel" in f"\n{said}", said


def streams(file: Path) -> Streams:
    """Return what each end of each connection has sent, in the order of its sequence numbers."""
    pieces: dict[tuple[Place, Place], dict[int, bytes]] = {}
    first: dict[tuple[Place, Place], int] = {}
    for packet in _packets(file.read_bytes()):
        if packet[12:14] != IPV4 or packet[23] != TCP:
            continue
        start = 14 + (packet[14] & 15) * 4
        source, target, number = struct.unpack_from("!HHI", packet, start)
        ends = ((_address(packet[26:30]), source), (_address(packet[30:34]), target))
        if packet[start + 13] & SYN:
            first[ends] = number + 1
        body = packet[start + (packet[start + 12] >> 4) * 4 : 14 + int.from_bytes(packet[16:18], "big")]
        if body:
            offset = (number - first.get(ends, number)) % 2**32
            pieces.setdefault(ends, {})[offset] = body
    return {ends: _joined(parts) for ends, parts in pieces.items()}


def _joined(parts: dict[int, bytes]) -> bytes:
    """Put the pieces of a stream one behind the other; what was sent again is left out."""
    whole = bytearray()
    for offset in sorted(parts):
        whole += parts[offset][max(len(whole) - offset, 0) :]
    return bytes(whole)


def _address(raw: bytes) -> str:
    return socket.inet_ntoa(raw)


def _packets(data: bytes) -> Iterator[bytes]:
    """Yield the packets of a pcap file in this machine's byte order."""
    place = 24
    while place + 16 <= len(data):
        (length,) = struct.unpack_from("=I", data, place + 8)
        yield data[place + 16 : place + 16 + length]
        place += 16 + length
