"""Run many runs with faults and write down how each ended: `python -m tests.cluster.fault_bench --out faults.jsonl`.

seed ─► faults of each run ─► FaultyRun on a fresh cluster ─► audit ─► one line of JSON a run
"""

import argparse
import json
import shutil
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from tests.cluster.audit import record_of, violations
from tests.cluster.faults import describe, draw_faults
from tests.cluster.faulty_run import FaultyRun
from tests.cluster.slurm_cluster import slurm_cluster


def main() -> None:
    """Run the runs that the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the runs, from 0")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    schedules = draw_faults(options.seed, options.runs, options.steps)
    for number in range(options.runs) if options.only is None else options.only:
        print(f"run {number}: {describe(schedules[number])}", flush=True)
        record = _run_one(schedules[number], options.steps, options.seed, number)
        with options.out.open("a") as lines:
            lines.write(json.dumps(record) + "\n")
        ends = [attempt["ended"] for attempt in record["attempts"]]
        print(f"run {number}: {ends} {record['seconds']} s {record['violations']}", flush=True)


def _run_one(faults: list[Any], steps: int, seed: int, number: int) -> dict[str, Any]:
    directory = Path(tempfile.mkdtemp(prefix=f"arl-faults-{number}-"))
    began = time.monotonic()
    found: list[str] = []
    with slurm_cluster(directory / "slurm") as cluster:
        run = FaultyRun(cluster, directory / "work", faults, steps, seed + number)
        try:
            run.to_the_end()
        except Exception:
            found.append(traceback.format_exc())
        found += violations(run, cluster.nodes)
        record = record_of(run, number) | {"seconds": round(time.monotonic() - began, 1), "violations": found}
    if found:
        print(f"run {number}: see {directory}")
    else:
        shutil.rmtree(directory)
    return record


if __name__ == "__main__":
    main()
