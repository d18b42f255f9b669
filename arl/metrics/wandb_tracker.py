"""Mirror metrics.jsonl to Weights & Biases: each line is the row of its number, samples are a table.

online ─► the run of the id in wandb/arl-run-id; wandb drops rows that the server has
  └─ its server does not answer, or refuses ─► offline, said in one line; `wandb sync` uploads the run later

An offline part of a resumed run holds the whole run, so it has an id of its own.
"""

import os
import secrets
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from arl.errors import InputError
from arl.metrics.base import TrackedRun, chart_values
from arl.metrics.names import AXES, METRICS, OF_EVALUATION, OF_OBJECTIVE, Record, number
from arl.metrics.sampled_episode import SampledEpisode

ID_FILE = "wandb/arl-run-id"  # in the run directory
NEWEST = "wandb/latest-run"  # wandb's link to the folder of this run that it wrote last
START_SECONDS = 20.0  # for wandb to register the run, in the tracker's own thread
MAX_GROUP = 128  # characters
MAX_TAG = 64
REDACTED = "(left out)"
SIDES = ("engine", "train", "reward")  # sections with environment variables
AXIS_STEP = "axis/step"
AXIS_TOKENS = "axis/tokens"
AXIS_TIME = "axis/time_s"
TOKENS = "tokens/trained_total"
COLUMNS = (*(name for name in SampledEpisode.__struct_fields__ if name != "spans"), "age")  # of the table of samples


def require_key() -> None:
    """Refuse online tracking without an API key.

    Raises:
        InputError: neither WANDB_API_KEY nor a netrc file (that of NETRC, or ~/.netrc) is there.
    """
    netrc = Path(os.environ.get("NETRC", Path.home() / ".netrc"))
    if "WANDB_API_KEY" not in os.environ and not os.path.exists(netrc):
        raise InputError("output.wandb online: no API key; run `wandb login`, set WANDB_API_KEY, or use offline")


class WandbTracker:
    """Implement Tracker and SampleTracker. The run's name at wandb is TrackedRun.name."""

    # Directories of runs that went offline in this process. In virtual time each checkpoint starts a tracker anew, and
    # wandb would refuse the id of the failed start as "in use".
    offline: ClassVar[set[Path]] = set()

    def __init__(self, run: TrackedRun) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # at a server that hangs, it delays the exit by 25 s
        import wandb  # importing it takes a second, so only this path does

        self._wandb: Any = wandb
        self._row = -1
        self._made = {0: {AXIS_TOKENS: 0.0, AXIS_TIME: 0.0}}  # version -> what had been trained when it was made
        self._run = self._start(run)
        for axis in (*AXES, AXIS_STEP, AXIS_TOKENS, AXIS_TIME):
            self._run.define_metric(axis)
        self._run.define_metric(f"{OF_EVALUATION}*", step_metric="policy_version", summary="max,last")
        for pattern in _patterns():
            self._run.define_metric(pattern, step_metric="step")
        for record in run.past:
            self.log(record)

    def _start(self, run: TrackedRun) -> Any:
        """Register the run at the server, or go offline if that fails."""
        if run.config["output"]["wandb"] == "offline" or run.directory in self.offline:
            return self._init(run, mode="offline")
        file = run.directory / ID_FILE
        if not file.exists():
            file.parent.mkdir(exist_ok=True)
            file.write_text(secrets.token_hex(8))
        try:
            return self._init(run, mode="online", id=file.read_text(), resume="allow")
        except self._wandb.Error as error:
            why = " ".join(str(error).split())[:120]
        self.offline.add(run.directory)
        run.note(f"wandb cannot be reached ({why}): it runs offline; sync later with {sync_command(run.directory)}")
        return self._init(run, mode="offline")

    def _init(self, run: TrackedRun, **options: str) -> Any:
        config = run.config
        return self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", "arl"),
            group=os.environ.get("WANDB_RUN_GROUP", config["name"])[-MAX_GROUP:],
            job_type="train",
            tags=tags(config, os.environ.get("WANDB_TAGS", "")),
            name=run.name,
            config=config | {"compare": comparable(config)},
            dir=run.directory,
            settings=self._wandb.Settings(
                silent=True,
                init_timeout=START_SECONDS,
                # It holds the command line, and that may give such variables.
                x_disable_meta=any(config[name]["environment"] for name in SIDES),
            ),
            **options,
        )

    def log(self, record: Record) -> None:
        """See Tracker. An evaluation, which may come many steps later, is placed where its version was made."""
        self._row += 1
        version = int(number(record, "policy_version"))
        if TOKENS in record:
            self._made[version] = {AXIS_TOKENS: number(record, TOKENS), AXIS_TIME: number(record, "time_s")}
        values: dict[str, Any] = {AXIS_STEP: version, **self._made.get(version, {})}
        for name, value in chart_values(record):
            if isinstance(value, list):
                values[name] = self._wandb.Histogram(np_histogram=(value, list(range(len(value) + 1))))
            else:
                values[name] = value
        self._run.log(values, step=self._row)

    def log_samples(self, step: int, samples: Sequence[SampledEpisode]) -> None:
        """See SampleTracker. Each table takes the place of the one before; wandb keeps all of them, by step."""
        rows = [[_cell(getattr(sample, name)) for name in COLUMNS] for sample in samples]
        self._run.log({"samples": self._wandb.Table(columns=list(COLUMNS), data=rows)}, step=self._row)

    def close(self) -> None:
        """See Tracker."""
        self._run.finish()


def sync_command(directory: Path) -> str:
    """Return the command that uploads what wandb has of a run on the disk."""
    return f"`wandb sync {shlex.quote(str(directory / NEWEST))}`"


def redacted(config: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe without the values of environment variables, any of which may be a secret."""
    sides = {name: config[name] for name in SIDES}
    return config | {
        name: side | {"environment": dict.fromkeys(side["environment"], REDACTED)} for name, side in sides.items()
    }


def comparable(config: dict[str, Any]) -> dict[str, str]:
    """Return what runs differ by in most comparisons. A run has either a staleness or a lag; "inf" is no bound."""
    rollout = config["rollout"]
    lag = rollout["lag"]
    flat = {
        "objective": config["objective"]["kind"],
        "proximal": config["objective"].get("proximal", "none"),
        "advantage": config["advantage"]["kind"],
        "mode": config["mode"],
        "world": config["world"],
        "backend": config["engine"]["kind"],
    }
    if lag is None:
        return flat | {"staleness": str("inf" if rollout["staleness"] is None else rollout["staleness"])}
    return flat | {"lag": str(lag if isinstance(lag, int) else next(filter(None, lag.values())))}


def tags(config: dict[str, Any], more: str = "") -> tuple[str, ...]:
    """Return the tags of a run: what matters, then `more`, which are separated by commas; each once."""
    flat = comparable(config)
    age = f"staleness={flat['staleness']}" if "staleness" in flat else f"lag={flat['lag']}"
    ours = [flat["objective"], age, flat["mode"], flat["world"], flat["backend"]]
    return tuple(dict.fromkeys(tag[-MAX_TAG:] for tag in [*ours, *filter(None, more.split(","))]))


def _patterns() -> set[str]:
    """Return patterns of all names but those of axes and evaluations. No two match one name: wandb may take either."""
    names = {*METRICS, OF_OBJECTIVE, "samples"} - set(AXES)
    patterns = {f"{name.partition('/')[0]}/*" if "/" in name else name for name in names}
    return patterns - {f"{OF_EVALUATION}*"}


def _cell(value: Any) -> Any:
    """Write named numbers as text, because cells of one column have one type."""
    return ", ".join(f"{name} {number:g}" for name, number in value.items()) if isinstance(value, dict) else value
