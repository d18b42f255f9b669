"""Mirror metrics.jsonl to Weights & Biases.

record ─► a row of wandb's history ─► charts over `step`, evaluations over `policy_version`: the version measured
samples ─► a table

online ─► does its server answer? ─► online
                              └─ no ─► offline, said in one line; `wandb sync` uploads the run later
"""

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arl.errors import InputError
from arl.metrics.base import TrackedRun
from arl.metrics.names import AXES, BY_AGE, METRICS, OF_EVALUATION, OF_OBJECTIVE, Record
from arl.metrics.sampled_episode import SampledEpisode

ANSWER_SECONDS = 5.0  # for the server's first answer
START_SECONDS = 30.0  # for wandb to register the run
COLUMNS = (  # of the table of samples
    *("step", "problem_id", "prompt", "response", "answer", "reward", "parts", "error", "advantage", "length", "age"),
    "truncated",
)


class WandbTracker:
    """Implement Tracker. The run's name at wandb is that of the run directory; a resumed run is the same run there."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb  # importing it takes a second, so only this path does

        self._wandb: Any = wandb
        if run.config["output"]["wandb"] == "online":
            self._run = self._go_online(run)
        else:
            self._run = self._init(run, "offline")

    def _go_online(self, run: TrackedRun) -> Any:
        """Register the run at the server, or go offline if that fails."""
        url = str(self._wandb.setup().settings.base_url)  # of the environment, or of `wandb login --host`
        why = f"no network, {url} does not answer"
        if is_reachable(url):
            try:
                return self._init(run, "online")
            except self._wandb.Error as error:
                why = f"{url} refuses the run ({error})"
        offline = self._init(run, "offline")
        files = Path(offline.dir).parent
        run.note(f"{why}: wandb runs offline; sync later with `wandb sync {files}`")
        return offline

    def _init(self, run: TrackedRun, mode: str) -> Any:
        place = str(run.directory.resolve())
        started = self._wandb.init(
            project=run.config["output"]["wandb_project"],
            name=run.name,
            id=hashlib.sha256(place.encode()).hexdigest()[:16],
            resume="allow",
            config=run.config,
            dir=run.directory,
            mode=mode,
            settings=self._wandb.Settings(silent=True, init_timeout=START_SECONDS),
        )
        for axis in AXES:
            started.define_metric(axis)
        for pattern in _patterns():
            axis = "policy_version" if pattern.startswith(OF_EVALUATION) else "step"
            started.define_metric(pattern, step_metric=axis)
        return started

    def log(self, record: Record) -> None:
        """See Tracker. Gives wandb no step, because it drops a record whose step is older than the last one's."""
        shown = {name: self._shown(value) for name, value in record.items() if not name.startswith(BY_AGE)}
        self._run.log(shown)

    def log_samples(self, step: int, samples: Sequence[SampledEpisode]) -> None:
        """See SampleTracker. Each table takes the place of the one before; wandb keeps all of them, by step."""
        rows = [[_cell(getattr(sample, name)) for name in COLUMNS] for sample in samples]
        table = self._wandb.Table(columns=list(COLUMNS), data=rows)
        self._run.log({"samples": table, "step": step})

    def close(self) -> None:
        """See Tracker."""
        self._run.finish()

    def _shown(self, value: float | list[int] | list[float | None]) -> Any:
        if not isinstance(value, list):
            return value
        edges = list(range(len(value) + 1))
        return self._wandb.Histogram(np_histogram=(value, edges))


def _patterns() -> list[str]:
    """Return patterns of all names but those of axes. No two match one name, because wandb may take either."""
    names = [*METRICS, OF_OBJECTIVE, "samples"]
    rooms = {f"{name.partition('/')[0]}/*" if "/" in name else name for name in names}
    return sorted(rooms - set(AXES))


def _cell(value: Any) -> Any:
    """Write named numbers as text, because cells of one column have one type."""
    return ", ".join(f"{name} {number:g}" for name, number in value.items()) if isinstance(value, dict) else value


def is_reachable(url: str) -> bool:
    """Ask a server for any answer, through the proxies of the environment, and wait at most ANSWER_SECONDS."""
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS):
            return True
    except urllib.error.HTTPError:
        return True  # an answer, though not a page
    except (OSError, http.client.HTTPException):  # nobody answers, or something that does not speak HTTP
        return False


def refuse_without_key() -> None:
    """Refuse online tracking without an API key.

    Raises:
        InputError: neither WANDB_API_KEY nor a netrc file (that of NETRC, or ~/.netrc) is there.
    """
    netrc = Path(os.environ.get("NETRC", Path.home() / ".netrc"))
    if "WANDB_API_KEY" not in os.environ and not netrc.exists():
        raise InputError("output.wandb online: no API key; run `wandb login`, set WANDB_API_KEY, or use offline")
