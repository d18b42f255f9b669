"""Send signals to processes of real runs, and write down how each ended.

    python -m tests.storm --trials 200 --seed 1 --out signals.json
    python -m tests.storm --trials 200 --seed 1 --only 7 --out one.json         run 7 of them again

seed ─► runs and their shots ─► StormRun ─► audit ─► records ─► summary ─► JSON
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.storm.audit import violations
from tests.storm.run_processes import with_own_shared_memory
from tests.storm.shots import Shot, Variant, draw_runs
from tests.storm.storm_run import FINISHED, StormRun


def main() -> None:
    """Run the runs that the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=200, help="signals")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="*", default=["embedded"], help="engine.kind: embedded, sglang")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the runs, from 0")
    parser.add_argument("--patience", type=float, default=1.0, help="factor of every deadline, for a busy machine")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with_own_shared_memory()
    drawn = draw_runs(options.seed, options.trials, options.kinds)
    records = []
    for number in range(len(drawn)) if options.only is None else options.only:
        records.append(run_one(number, *drawn[number], options.seed, options.patience))
        document = {"seed": options.seed, **summary(records), "runs": records}
        options.out.write_text(json.dumps(document, indent=1) + "\n")
    sys.exit(any(record["violations"] for record in records))


def run_one(number: int, variant: Variant, shots: Sequence[Shot], seed: int, patience: float) -> dict[str, Any]:
    """Run one run to its end and audit it. Its files are kept if something is wrong."""
    print(f"run {number}: {variant}", flush=True)
    directory = Path(tempfile.mkdtemp(prefix=f"arl-storm-{number}-"))
    run = StormRun(directory / "run", variant, shots, patience, random.Random(f"{seed} {number}"))
    found: list[str] = []
    try:
        run.to_the_end()
        found = violations(run)
    except Exception:
        found = [traceback.format_exc()]
    attempts = [
        {
            "shot": attempt.shot and asdict(attempt.shot),
            "victim": attempt.victim and str(attempt.victim),
            "code": attempt.code,
            "seconds_after_signal": attempt.seconds,
            "steps": attempt.steps[:1] + attempt.steps[-1:],
            "diagnosis": "" if attempt.code == FINISHED else attempt.diagnosis[:600],
        }
        for attempt in run.attempts
    ]
    if found:
        print(f"run {number}: see {directory}: {found}: {json.dumps(attempts)}", flush=True)
    else:
        shutil.rmtree(directory)
    return {"run": number, "variant": str(variant), "attempts": attempts, "violations": found}


def summary(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Count signals, ends and violations."""
    attempts = [attempt for record in records for attempt in record["attempts"]]
    hit = [attempt for attempt in attempts if attempt["victim"] is not None]
    ended = [attempt for attempt in hit if attempt["code"] != 0]
    return {
        "runs": len(records),
        "signals": len(hit),
        "recovered": len(hit) - len(ended),
        "longest_seconds_to_an_end": max((attempt["seconds_after_signal"] for attempt in ended), default=0.0),
        "runs_with_violations": [record["run"] for record in records if record["violations"]],
    }


if __name__ == "__main__":
    main()
