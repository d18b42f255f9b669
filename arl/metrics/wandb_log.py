"""Read a .wandb file: a LevelDB log of wandb_internal_pb2 records, behind a header of 7 bytes.

wandb has no public reader of it. A killed run leaves only whole blocks of 32 KiB, because wandb buffers the last one.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = 32_768
FRAGMENT_HEADER = 7  # crc (4), length (2), kind (1)
ENDS = {1, 4}  # kinds of a whole record, and of the last fragment of one


def read_log(file: Path) -> Iterator[Any]:
    """Yield the records of a .wandb file, up to one that a killed run has left half-written."""
    from wandb.proto import wandb_internal_pb2

    data = file.read_bytes()
    at = FRAGMENT_HEADER
    content = b""
    while at + FRAGMENT_HEADER <= len(data):
        room = BLOCK - at % BLOCK
        if room < FRAGMENT_HEADER:  # the rest of a block is filled with zeros
            at += room
            continue
        length = int.from_bytes(data[at + 4 : at + 6], "little")
        kind = data[at + 6]
        at += FRAGMENT_HEADER
        if at + length > len(data):
            return
        content += data[at : at + length]
        at += length
        if kind in ENDS:
            record = wandb_internal_pb2.Record()
            record.ParseFromString(content)
            yield record
            content = b""


def read_summary(file: Path) -> dict[str, Any]:
    """Return the summary that the run had when the file ends."""
    values: dict[str, Any] = {}
    for record in read_log(file):
        if record.WhichOneof("record_type") == "summary":
            for item in record.summary.update:
                values[item.key or ".".join(item.nested_key)] = json.loads(item.value_json)
    return values
