"""Run many runs with faults and write down how each ended.

    python -m tests.cluster.fault_bench --out faults.json                              20 runs of 200 steps
    python -m tests.cluster.fault_bench --only 7 --out one.json                        run 7 of them again

seed ─► faults of each run ─► FaultyRun on a fresh cluster ─► audit ─► records ─► summary ─► JSON

Several of these may run at once, each with some of the runs: each writes its own file, and `--join` makes one of them.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from arl.bench import to_json
from tests.cluster.audit import record_of, violations
from tests.cluster.faults import Fault, describe, draw_faults
from tests.cluster.faulty_run import FaultyRun
from tests.cluster.slurm_cluster import slurm_cluster


def main() -> None:
    """Run the runs that the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the runs, from 0")
    parser.add_argument(
        "--join", type=Path, nargs="*", help="files, of which --out gets every run; the last one counts"
    )
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.join is not None:
        files = [json.loads(file.read_text()) for file in options.join]
        records = list({record["run"]: record for file in files for record in file["runs"]}.values())
    else:
        records = []
        schedules = [*draw_faults(options.seed, options.runs, options.steps), stopped_controller(options.steps)]
        for number in range(len(schedules)) if options.only is None else options.only:
            records.append(_run_one(schedules[number], options.steps, options.seed, number))
            _write(options.out, options.seed, records)
    _write(options.out, options.seed, records)
    sys.exit(any(record["violations"] for record in records))


def stopped_controller(steps: int) -> list[Fault]:
    """Return the faults of the last run: nobody but the job's own script ends a controller that never goes on."""
    return [Fault("stop", "controller", step=steps // 2)]


def _run_one(faults: Sequence[Fault], steps: int, seed: int, number: int) -> dict[str, Any]:
    """Run one run to its end and audit it. Its files are kept if something is wrong."""
    print(f"run {number}: {describe(faults)}", flush=True)
    directory = Path(tempfile.mkdtemp(prefix=f"arl-faults-{number}-"))
    began = time.monotonic()
    found: list[str] = []
    with slurm_cluster(directory / "slurm") as cluster:
        run = FaultyRun(cluster, directory / "work", faults, steps, seed + number)
        try:
            run.to_the_end()
        except Exception:
            found.append(traceback.format_exc())
        found += violations(run, cluster)
    record = record_of(run, number) | {"seconds": round(time.monotonic() - began, 1), "violations": found}
    if found:
        print(f"run {number}: see {directory}")
    else:
        shutil.rmtree(directory)
    ends = [attempt["ended"] for attempt in record["attempts"]]
    print(f"run {number}: {ends} {record['seconds']} s {found}", flush=True)
    return record


def _write(out: Path, seed: int, records: list[dict[str, Any]]) -> None:
    in_order = sorted(records, key=lambda record: record["run"])
    out.write_text(to_json({"seed": seed, **summary(in_order), "runs": in_order}) + "\n")


def summary(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Count the runs, their faults and how their attempts ended."""
    attempts = [attempt for record in records for attempt in record["attempts"]]
    faults = [_without_step(hit) for attempt in attempts for hit in attempt["faults"]]
    return {
        "num_runs": len(records),
        "num_steps": sum(record["steps"] for record in records),
        "num_faults": len(faults),
        "faults": _sorted_counts(faults),
        "ends_of_attempts": _sorted_counts(attempt["ended"] for attempt in attempts),
        "runs_without_an_interruption": sum(len(record["attempts"]) == 1 for record in records),
        "longest_seconds_to_a_diagnosis": max(
            (attempt["seconds_after_fault"] for attempt in attempts if _is_diagnosed(attempt)), default=None
        ),
        "runs_with_violations": [record["run"] for record in records if record["violations"]],
    }


def _without_step(hit: str) -> str:
    """Return what a fault was, as in "kill engine"."""
    return hit.partition(" after step ")[0]


def _is_diagnosed(attempt: dict[str, Any]) -> bool:
    return attempt["ended"] != "COMPLETED" and attempt["seconds_after_fault"] is not None


def _sorted_counts(items: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(items).items()))


if __name__ == "__main__":
    main()
