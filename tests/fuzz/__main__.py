"""Try one edge with a number of damaged inputs; print the figures as JSON.

python -m tests.fuzz recipes --count 20000 --seed 1
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

import msgspec

from tests.fuzz.edges import EDGES
from tests.fuzz.trials import Failed, done, peak_memory

MOST_SHOWN = 20  # failures
LONGEST_SECONDS = 2.0  # that a trial may take


def main() -> int:
    """Return 1 if a trial ended as it must not."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("edge", choices=sorted(EDGES))
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    edge = EDGES[asked.edge]
    endings: Counter[str] = Counter()
    slowest = 0.0
    longest = 0
    failures = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, edge.prepare(Path(folder)) as draw:
        for number in range(asked.count):
            trial = draw(Random(f"{asked.seed}/{number}"))
            try:
                ended = done(trial, edge.refuses, LONGEST_SECONDS)
            except Failed as error:
                endings["failed"] += 1
                failures.append(f"trial {number}: {error}")
                continue
            endings["refused" if ended.refusal else "succeeded"] += 1
            slowest = max(slowest, ended.seconds)
            longest = max(longest, len(ended.refusal))
    figures = {
        "edge": asked.edge,
        "trials": asked.count,
        "seed": asked.seed,
        **endings,
        "slowest_s": round(slowest, 3),
        "longest_message": longest,
        "peak_memory_mb": peak_memory() >> 20,
        "seconds": round(time.monotonic() - began),
        "failures": failures[:MOST_SHOWN],
    }
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(figures)) + b"\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
