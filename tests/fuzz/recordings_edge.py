"""Replay damaged recordings: what is accepted replays to its end, and everything else is refused before it begins."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from arl.run.replay.replay_plan import plan_replay
from arl.run.replay.replay_world import replay
from tests.fuzz.run_files import damage_run, record_run, silent
from tests.fuzz.trials import Draw, Edge, Trial

PARQUET = "trajectories/000000.parquet"
FILES = [PARQUET, PARQUET, PARQUET, "trace.json", "metrics.jsonl", "summary.json", "recipe.yaml", "trajectories"]
RULES = ((), (), ("rollout.staleness=1",), ("objective.kind=ppo",), ("rollout.filter=null", "rollout.staleness=3"))
REPLAYED = 0.05  # of what is accepted: a whole replay takes a second


@contextmanager
def prepare(folder: Path) -> Iterator[Draw]:
    """Record one run."""
    run = record_run(folder)

    def draw(random: Random) -> Trial:
        copy = folder / "copy" / run.name
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run, copy)
        told = damage_run(random, copy, FILES)
        overrides = (*random.choice(RULES), f"output.directory={folder / 'replays'}", "train.steps=1")
        is_replayed = random.random() < REPLAYED

        def do() -> None:
            plan_replay(copy, overrides)
            if is_replayed:
                replay(copy, overrides, silent())
                shutil.rmtree(folder / "replays")

        return Trial(told, do)

    yield draw


RECORDINGS = Edge(prepare, trials=100)
