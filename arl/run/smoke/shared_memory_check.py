"""Write, map and read a file in shared memory: `python -m arl.run.smoke.shared_memory_check DIRECTORY BYTES`.

It runs in a process of its own, because a mapped page for which there is no room ends a process by SIGBUS.
"""

import json
import mmap
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np

PIECE = 16 * 2**20  # bytes that are written at once


def check(directory: Path, size: int) -> dict[str, float | bool]:
    """Write `size` bytes as a publication does, and read them back through a mapping as an engine does.

    Returns:
        Whether every byte came back, and GB/s of both ways.

    Raises:
        OSError: there is no room.
    """
    words = np.random.default_rng(0).integers(0, 2**63, PIECE // 8)
    piece = words.tobytes()
    whole, rest = divmod(size, PIECE)
    with tempfile.TemporaryFile(dir=directory) as file:
        start = perf_counter()
        for _ in range(whole):
            file.write(piece)
        file.write(piece[:rest])
        file.flush()
        written = perf_counter() - start
        with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as mapped:
            start = perf_counter()
            is_right = all(mapped[i * PIECE : (i + 1) * PIECE] == piece for i in range(whole))
            is_right = is_right and mapped[whole * PIECE :] == piece[:rest]
            read = perf_counter() - start
    return {
        "is_right": is_right,
        "gigabytes": round(size / 1e9, 3),
        "write_gb_per_s": round(size / written / 1e9, 3),
        "read_gb_per_s": round(size / read / 1e9, 3),
    }


if __name__ == "__main__":
    print(json.dumps(check(Path(sys.argv[1]), int(sys.argv[2]))), flush=True)
