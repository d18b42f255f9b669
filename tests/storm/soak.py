"""Run the quickstart for hours while its processes are killed, and say whether what it takes stays the same.

    python -m tests.storm.soak --minutes 120 --directory soak --out soak.json

arl train ─► SIGKILL of a drawn role every 20 to 90 s ─► it recovers, or ends and is resumed ─► … ─► SIGTERM
     every 10 s: samples.jsonl ─► growth (tests.storm.growth) ─┐
     at the end: lineage, what is left behind                  ┴─► JSON
"""

import argparse
import json
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from tests.storm.growth import growth
from tests.storm.lineage import audit_stopped
from tests.storm.remains import files_left
from tests.storm.run_processes import processes_of_run, start_marked, with_own_shared_memory
from tests.storm.samples import take_sample

ROOT = Path(__file__).parents[2]
# Deadlines are long because whatever else this machine does may slow the run down a lot; here nothing is stopped.
SETTINGS = {
    "train.steps": 1_000_000,
    "eval.problems": 256,
    "eval.every": 200,
    "engine.max_restarts": 10_000,
    "deadlines.startup": 600,
    "deadlines.step": 600,
    "deadlines.swap": 300,
    "deadlines.generate": 300,
    "deadlines.reward": 60,
    "deadlines.stop": 300,
    "deadlines.shutdown": 30,
}
# A run survives the first two, and is resumed after the others. They are rarer, so that processes also grow old.
WEIGHTS = {"engine": 4, "reward worker": 3, "trainer": 1, "controller": 1}
SECONDS_BETWEEN_KILLS = (20.0, 90.0)
SAMPLE_SECONDS = 10.0
POLL_SECONDS = 0.5
END_SECONDS = 400.0  # from SIGTERM to the end: deadlines.stop and deadlines.shutdown
STEP_LINE = re.compile(rb"^step +(\d+)", re.MULTILINE)
TAIL_BYTES = 1 << 16


class Soak:
    """Hold one run, its kills and its samples."""

    def __init__(self, directory: Path, seed: int, mark: str) -> None:
        self.directory = directory
        self.run = directory / "runs" / "quickstart"
        self.attempt = 0
        self.kills: list[dict[str, object]] = []
        self.ends: list[int] = []  # exit codes
        self._mark = mark
        self._source = random.Random(seed)
        self._output = directory / "output.txt"
        self._process = self._start()
        self._began = time.monotonic()

    def _start(self) -> subprocess.Popen[bytes]:
        settings = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
        resume = ["--resume"] if self._has_checkpoint() else []
        recipe = str(ROOT / "recipes" / "quickstart.yaml")
        argv = [sys.executable, "-m", "arl.cli", "train", recipe, *settings, *resume]
        return start_marked(argv, self._mark, self.directory, self._output)

    def _has_checkpoint(self) -> bool:
        return any((self.run / "checkpoints").glob("step_*"))

    @property
    def seconds(self) -> float:
        """Return how long it has run."""
        return time.monotonic() - self._began

    def last_step(self) -> int:
        """Return the last step that the run has shown."""
        with self._output.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            steps = STEP_LINE.findall(file.read())
        return int(steps[-1]) if steps else 0

    def run_for(self, seconds: float) -> None:
        """Kill, resume and measure for so long, then stop the run cleanly."""
        next_kill = self._draw_pause()
        next_sample = 0.0
        with (self.directory / "samples.jsonl").open("ab", buffering=0) as samples:
            while self.seconds < seconds:
                if self._process.poll() is not None:
                    self._resume()
                    next_kill = max(next_kill, self.seconds + SECONDS_BETWEEN_KILLS[0])
                if self.seconds >= next_sample:
                    next_sample = self.seconds + SAMPLE_SECONDS
                    samples.write(self._sample() + b"\n")
                if self.seconds >= next_kill and self._kill_one():
                    next_kill = self.seconds + self._draw_pause()
                time.sleep(POLL_SECONDS)
        self._stop()

    def _draw_pause(self) -> float:
        return self._source.uniform(*SECONDS_BETWEEN_KILLS)

    def _resume(self) -> None:
        self.ends.append(self._process.wait())
        self.attempt += 1
        self._process = self._start()

    def _sample(self) -> bytes:
        processes = processes_of_run(self._mark)
        sample = take_sample(self._began, self.last_step(), self.attempt, processes, self.run, self.directory / "tmp")
        return msgspec.json.encode(sample)

    def _kill_one(self) -> bool:
        """Kill a process of a drawn role; return whether there was one."""
        if not self._has_checkpoint():
            return False  # there would be nothing to resume
        role = self._source.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        found = [each for each in processes_of_run(self._mark) if each.role == role]
        if not found:
            return False
        victim = self._source.choice(found)
        self.kills.append({"seconds": round(self.seconds, 1), "step": self.last_step(), "victim": str(victim)})
        victim.process.kill()
        (self.directory / "kills.json").write_text(json.dumps(self.kills, indent=1))
        return True

    def _stop(self) -> None:
        """Stop the run at a checkpoint, as a person does, once it trains."""
        deadline = time.monotonic() + END_SECONDS
        before = self.last_step()
        while self._process.poll() is None and self.last_step() == before and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        self._process.send_signal(signal.SIGTERM)
        self.ends.append(self._process.wait(END_SECONDS))


def main() -> None:
    """Run it, and write what was found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, required=True, help="of the run and its samples; must not exist")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with_own_shared_memory()
    directory: Path = options.directory.absolute()
    directory.mkdir(parents=True)
    soak = Soak(directory, options.seed, mark=str(directory))
    soak.run_for(60 * options.minutes)
    time.sleep(1.0)
    left = [str(each) for each in processes_of_run(str(directory))]
    left += [str(path) for path in files_left(directory / "tmp")]
    record = {
        "minutes": options.minutes,
        "seed": options.seed,
        "kills": len(soak.kills),
        "ends": soak.ends,
        "left_behind": left,
        "lineage": audit_stopped(soak.run),
        "growth": growth(directory / "samples.jsonl"),
    }
    options.out.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
