"""Record what crosses the links of machines, and read it: which ports spoke, and what they said.

Machine ─► tcpdump on its link ─► a pcap file ─► streams(): the bytes of each direction of each TCP connection, in order
"""

import base64
import contextlib
import struct
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.machines import INTERFACE, Machine

ETHERNET_BYTES = 14
TCP = 6
IPV4 = 0x0800
FILE_HEADER_BYTES = 24
PACKET_HEADER = struct.Struct("<IIII")


@dataclass(frozen=True)
class Connection:
    """Name one direction of a TCP connection: addresses and ports."""

    source: str
    source_port: int
    target: str
    target_port: int


@contextlib.contextmanager
def captured(nodes: Mapping[str, Machine], directory: Path) -> Iterator[list[Path]]:
    """Record every packet on the links of `nodes` meanwhile; yield the files, which are complete afterwards."""
    directory.mkdir(parents=True)
    files = [directory / f"{name}.pcap" for name in nodes]
    with contextlib.ExitStack() as stack:
        for machine, file in zip(nodes.values(), files, strict=True):
            stack.enter_context(_recording(machine, file))
        yield files


@contextlib.contextmanager
def _recording(machine: Machine, file: Path) -> Iterator[None]:
    on_its_link = ["nsenter", f"--net=/proc/{machine.pid}/ns/net"]
    command = ["tcpdump", "-i", INTERFACE, "-s", "0", "-B", "65536", "-U", "--immediate-mode", "-Z", "root", "-w"]
    recorder = subprocess.Popen([*on_its_link, *command, str(file)], stderr=subprocess.PIPE, text=True)
    assert recorder.stderr is not None
    try:
        line = recorder.stderr.readline()
        assert "listening on" in line, f"tcpdump on {machine.name}: {line}"
        yield
    finally:
        recorder.terminate()
        _, end = recorder.communicate(timeout=30)
    assert "\n0 packets dropped by kernel" in f"\n{end}", f"tcpdump on {machine.name} missed packets: {end}"


def streams(file: Path) -> dict[Connection, bytes]:
    """Return what was sent in each direction of each connection, without repetitions and in the order of its bytes."""
    segments: dict[Connection, dict[int, bytes]] = defaultdict(dict)
    for packet in _packets(file.read_bytes()):
        found = _segment(packet)
        if found is not None:
            connection, sequence, payload = found
            known = segments[connection].get(sequence, b"")
            segments[connection][sequence] = max(known, payload, key=len)
    return {connection: _joined(by_sequence) for connection, by_sequence in segments.items()}


def _joined(by_sequence: Mapping[int, bytes]) -> bytes:
    """Join segments; of bytes that were sent twice, one is left."""
    joined = b""
    end = None
    for sequence in sorted(by_sequence):
        payload = by_sequence[sequence]
        overlap = 0 if end is None else max(0, end - sequence)
        joined += payload[overlap:]
        end = max(end or 0, sequence + len(payload))
    return joined


def _packets(data: bytes) -> Iterator[bytes]:
    position = FILE_HEADER_BYTES
    while position + PACKET_HEADER.size <= len(data):
        _, _, length, _ = PACKET_HEADER.unpack_from(data, position)
        position += PACKET_HEADER.size
        yield data[position : position + length]
        position += length


def _segment(packet: bytes) -> tuple[Connection, int, bytes] | None:
    """Return connection, sequence number and payload of a TCP segment; None: it is something else, or empty."""
    if len(packet) < ETHERNET_BYTES + 20 or struct.unpack_from("!H", packet, 12)[0] != IPV4:
        return None
    header_bytes = (packet[ETHERNET_BYTES] & 0x0F) * 4
    total = struct.unpack_from("!H", packet, ETHERNET_BYTES + 2)[0]
    if packet[ETHERNET_BYTES + 9] != TCP:
        return None
    addresses = packet[ETHERNET_BYTES + 12 : ETHERNET_BYTES + 20]
    start = ETHERNET_BYTES + header_bytes
    source_port, target_port, sequence = struct.unpack_from("!HHI", packet, start)
    payload_at = start + (packet[start + 12] >> 4) * 4
    payload = packet[payload_at : ETHERNET_BYTES + total]
    connection = Connection(_dotted(addresses[:4]), source_port, _dotted(addresses[4:]), target_port)
    return (connection, sequence, payload) if payload else None


def _dotted(address: bytes) -> str:
    return ".".join(str(part) for part in address)


def in_any_form(secret: str) -> dict[str, bytes]:
    """Return what a secret looks like on the wire, by the name of its form.

    >>> in_any_form("00ff")["decoded hexadecimal"]
    b'\\x00\\xff'
    """
    text = secret.encode()
    forms = {"as it is": text, "hexadecimal": text.hex().encode(), "utf-16": secret.encode("utf-16-le")}
    with contextlib.suppress(ValueError):  # it is no hexadecimal number
        forms["decoded hexadecimal"] = bytes.fromhex(secret)
        forms["upper case"] = secret.upper().encode()
    for name, form in list(forms.items()):
        # The alphabet of base64 is shifted by what stands before: of three shifts, the inner characters are fixed.
        for shift in range(3):
            encoded = base64.b64encode(b"\0" * shift + form)
            forms[f"base64 of {name}, shifted by {shift}"] = encoded[4:-4]
    return forms


def found_in(streamed: Sequence[bytes], secrets: Mapping[str, str]) -> list[str]:
    """Return which secrets stand in the clear in a capture, and in which form; empty: none."""
    found = []
    for name, secret in secrets.items():
        for form, pattern in in_any_form(secret).items():
            if any(pattern in data for data in streamed):
                found.append(f"{name}: {form}")
    return found
