"""Hold a change to what the code before it did: the same bits.

    just guards --record          before a change: write what this tree computes to runs/guards.json
    just guards                   after it: compute it again, and name each difference

Bits depend on the processor and on the versions of torch and numpy, so a record holds for one machine. Everything is
computed through the command line, whose meaning a change inside leaves alone.
"""

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
ARL = [sys.executable, "-m", "arl.cli"]
SHORT = "train.steps=6 rollout.problems_per_step=8 rollout.staleness=2 eval.problems=64 output.checkpoint_every=2"
SLOW_TRAINER = "virtual.train_step=0.3"
VARIANTS = [
    "",
    "seed=1",
    "rollout.staleness=0",
    "rollout.staleness=1",
    f"rollout.staleness=null rollout.max_groups=24 {SLOW_TRAINER}",
    "rollout.staleness=4 virtual.train_step=0.001 virtual.trained_token=0",
    "rollout.staleness=null rollout.lag=2",
    "objective.kind=ppo",
    "objective.kind=gspo objective.clip_low=3e-4 objective.clip_high=4e-4",
    "objective.proximal=loglinear",
    "objective.weight.mode=mask objective.weight.high=2",
    "objective.dual_clip=3 objective.entropy_coefficient=0.01",
    "advantage.kind=rloo",
    "advantage.kind=batch_norm",
    "mode=collocated virtual.engine_pass=0.02",
    "engine.replicas=2 engine.kv_policy=keep virtual.load=0.05",
    "sync.interrupt=false",
    "rollout.staleness=0 rollout.tail_batching={}",
    "train.minibatches=2 train.decay=cosine train.ramp_steps=3 train.weight_decay=0.1 train.decayed=matrices",
    "reward.mask_truncated=true reward.scale=2 rollout.max_new_tokens=44 train.packing=fixed train.packing_count=4",
]


def main() -> None:
    """Record, or compare with the record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--record", action="store_true", help="write the record instead of comparing with it")
    parser.add_argument("--file", type=Path, default=ROOT / "runs" / "guards.json", help="where the record is")
    parser.add_argument("--only", nargs="*", default=list(GUARDS), choices=list(GUARDS))
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="arl-guards-"))
    computed: dict[str, Any] = {}
    for name in options.only:
        began = time.monotonic()
        computed[name] = GUARDS[name](work)
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    shutil.rmtree(work)
    if options.record:
        options.file.parent.mkdir(exist_ok=True)
        options.file.write_text(json.dumps(computed, indent=1) + "\n")
        return
    recorded = json.loads(options.file.read_text())
    found = [line for name in computed for line in differences(name, recorded[name], computed[name])]
    print("\n".join(found) or "all equal")
    sys.exit(bool(found))


def run(command: list[str]) -> str:
    """Run a command in the project and return its output.

    Raises:
        SystemExit: it failed, or still ran after twenty minutes; its output says why.
    """
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout[-6000:]}{done.stderr[-6000:]}")
    return done.stdout


def settings(text: str) -> list[str]:
    """Return `--set` options of space-separated settings."""
    return [word for setting in text.split() for word in ("--set", setting)]


def train(directory: Path, variant: str) -> list[str]:
    """Return the command of a short quickstart in virtual time."""
    recipe = "recipes/quickstart-virtual.yaml"
    return [*ARL, "train", recipe, *settings(f"{SHORT} output.directory={directory} {variant}")]


def weights(run_directory: Path) -> str:
    """Return the sha256 of a finished run's last weights."""
    summary: dict[str, Any] = json.loads((run_directory / "summary.json").read_text())
    return str(summary["weights_sha256"])


def variants(work: Path) -> dict[str, str]:
    """Train every variant, two at a time."""

    def one(number: int) -> str:
        run(train(work / f"variant-{number}", VARIANTS[number]))
        return weights(work / f"variant-{number}" / "quickstart-virtual")

    first = one(0)  # alone, because it teaches the model that all of them begin with
    with ThreadPoolExecutor(max_workers=2) as pool:
        rest = pool.map(one, range(1, len(VARIANTS)))
        return dict(zip(VARIANTS, [first, *rest], strict=True))


def replays(work: Path) -> dict[str, str]:
    """Train again from what two variants recorded."""
    found = {}
    for number in (1, 5):
        recorded = work / f"variant-{number}" / "quickstart-virtual"
        output = run([*ARL, "replay", str(recorded), *settings(f"output.directory={work / f'replay-{number}'}")])
        found[VARIANTS[number]] = output.split("sha256 ")[1].split()[0]
    return found


def kills(work: Path) -> dict[str, str]:
    """Kill runs at random points until they have ended, resuming each time."""
    found = {}
    for number in (0, 5, 16):
        directory = work / f"killed-{number}"
        command = train(directory, VARIANTS[number])
        for _ in range(4):
            resume = ["--resume"] if any(directory.glob("*/checkpoints/step_*")) else []
            process = subprocess.Popen(
                [*command, *resume], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            _wait_for_a_step(directory, process)
            time.sleep(random.uniform(0, 1))
            process.send_signal(signal.SIGKILL)
            if process.wait() == 0:
                break
        else:
            resume = ["--resume"] if any(directory.glob("*/checkpoints/step_*")) else []
            run([*command, *resume])
        finished = [path.parent for path in directory.glob("*/summary.json")]
        found[VARIANTS[number]] = weights(finished[-1])
    return found


def _wait_for_a_step(directory: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until a run has written one more step than it had, or has ended."""
    before = _steps(directory)
    while process.poll() is None and _steps(directory) <= before:
        time.sleep(0.05)


def _steps(directory: Path) -> int:
    return sum(len(path.read_bytes().splitlines()) for path in directory.glob("*/metrics.jsonl"))


def report(work: Path) -> Any:
    """Compare the variants in one report, and return all of its numbers."""
    directories = [str(work / f"variant-{number}") for number in (0, 1, 2, 3, 7, 9)]
    output = run([*ARL, "report", *directories, "--json", "--at-steps", "2,4", "--at-tokens", "1000"])
    return json.loads(output.replace(str(work), "WORK"))


def quickstart(work: Path) -> str:
    """Let the quickstart learn."""
    run([*ARL, "train", "recipes/quickstart.yaml", "--set", f"output.directory={work / 'quickstart'}"])
    (summary,) = (work / "quickstart").glob("*/summary.json")
    accuracy = json.loads(summary.read_text())["accuracy_after"]
    print(f"    quickstart: {accuracy:.3f}")
    return "learns" if accuracy >= 0.93 else f"ends at {accuracy}"


def differences(place: str, before: Any, after: Any) -> list[str]:
    """Return a line for each leaf that differs."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [
            line
            for key in {**before, **after}
            for line in differences(f"{place}.{key}", before.get(key), after.get(key))
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [line for index, (old, new) in pairs for line in differences(f"{place}.{index}", old, new)]
    return [] if before == after else [f"{place}: {before!r:.200} before, {after!r:.200} now"]


GUARDS: dict[str, Callable[[Path], Any]] = {
    "variants": variants,
    "replays": replays,
    "kills": kills,
    "report": report,
    "quickstart": quickstart,
}

if __name__ == "__main__":
    main()
