"""Mirror metrics.jsonl to Weights & Biases.

record ─► a row of wandb's history ─► charts over `step`, evaluations over `policy_version`: the version measured
       │  each row also has axis/step, axis/tokens and axis/time_s, to choose as the x axis of any chart
       └► the summary: best/…, final/…, target/…
samples ─► a table

online ─► does its server answer? ─► online: a resumed run adds the rows that the server lacks
                              └─ no ─► offline, said in one line; `wandb sync` uploads the run later.
                                       A resumed run is written whole, but for rows that were uploaded before
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from arl.config.run_section import Target
from arl.metrics.base import TrackedRun
from arl.metrics.names import AXES, METRICS, OF_EVALUATION, OF_OBJECTIVE, Record, number
from arl.metrics.run_labels import MAX_TAG, comparable, has_environment, tags
from arl.metrics.sampled_episode import SampledEpisode
from arl.metrics.shown_values import shown_values
from arl.metrics.tracked_summary import (
    AXIS_STEP,
    AXIS_TIME,
    AXIS_TOKENS,
    TrackedSummary,
    VersionAxes,
    accuracies,
)
from arl.metrics.wandb_files import EarlierParts, SampleTable, run_id
from arl.metrics.wandb_server import START_SECONDS, is_reachable

MAX_BINS = 512  # of a histogram at wandb
MAX_GROUP = 128  # characters
COLUMNS = (  # of the table of samples
    *("step", "problem_id", "prompt", "response", "answer", "reward", "parts", "error", "advantage", "length", "age"),
    "truncated",
)


class WandbTracker:
    """Implement Tracker. The run's name at wandb is TrackedRun.name; a resumed run is the same run there."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb  # importing it takes a second, so only this path does

        output = run.config["output"]
        target = output["target"]
        self._wandb: Any = wandb
        self._note = run.note
        self._has_warned = False
        self._id = run_id(run.directory)
        self._axes = VersionAxes()
        self._summary = TrackedSummary(None if target is None else Target(**target))
        self._earlier = EarlierParts(run.directory, self._id)
        self._run = self._go_online(run) if output["wandb"] == "online" else self._go_offline(run)
        self._repeat(run.past, self._earlier.tables())
        self._earlier.remove()

    def _go_online(self, run: TrackedRun) -> Any:
        """Register the run at the server, or go offline if that fails."""
        quiet = self._wandb.Settings(silent=True)  # without it wandb would prompt in a terminal, if it finds no key
        url = str(self._wandb.setup(quiet).settings.base_url)  # of the environment, or of `wandb login --host`
        why = f"no network, {url} does not answer"
        if is_reachable(url):
            try:
                started = self._init(run, "online", resume="allow")
                self._held = _HeldRows(started.summary if started.resumed else {})
                return started
            except self._wandb.Error as error:
                why = f"{url} refuses the run ({error})"
        offline = self._go_offline(run)
        parts = [*self._earlier.online, Path(offline.dir).parent]
        folders = " ".join(shlex.quote(str(part)) for part in parts)
        run.note(f"{why}: wandb runs offline; sync later with `wandb sync {folders}`")
        return offline

    def _go_offline(self, run: TrackedRun) -> Any:
        """Start a part that holds the whole run, or all that was not uploaded before."""
        self._held = _HeldRows(self._earlier.summary())
        resume = "allow" if self._earlier.were_uploaded else None
        return self._init(run, "offline", resume)

    def _init(self, run: TrackedRun, mode: str, resume: str | None) -> Any:
        config = run.config
        output = config["output"]
        started = self._wandb.init(
            project=output["wandb_project"],
            group=(output["wandb_group"] or config["name"])[-MAX_GROUP:],
            job_type=output["wandb_job_type"][-MAX_TAG:],
            tags=tags(config),
            name=run.name,
            id=self._id,
            resume=resume,
            config=config | {"compare": comparable(config)},
            dir=run.directory,
            mode=mode,
            settings=self._wandb.Settings(
                silent=True,
                init_timeout=START_SECONDS,
                x_disable_meta=has_environment(config),  # which holds the command line, and that may give them
            ),
        )
        for axis in (*AXES, AXIS_STEP, AXIS_TOKENS, AXIS_TIME):
            started.define_metric(axis)
        for pattern in _patterns():
            axis = "policy_version" if pattern.startswith(OF_EVALUATION) else "step"
            started.define_metric(pattern, step_metric=axis)
        return started

    def _repeat(self, past: Sequence[Record], tables: dict[int, SampleTable]) -> None:
        """Log what metrics.jsonl has kept of a resumed run, as far as this run at wandb lacks it."""
        for record in past:
            step = int(number(record, "step"))
            is_new = self._log(record)
            if is_new and not accuracies(record) and step in tables:
                self._log_table(step, tables[step])

    def log(self, record: Record) -> None:
        """See Tracker. Gives wandb no step, because it drops a record whose step is older than the last one's."""
        if not self._log(record) and not self._has_warned:
            self._has_warned = True
            step = int(number(record, "step"))
            self._note(f"wandb keeps the rows that it had of step {step} and later, which are now trained again")

    def _log(self, record: Record) -> bool:
        """Log a record unless the server holds its row; return whether it was logged."""
        place = self._axes.place(record)
        changed = self._summary.add(record, place)
        if record in self._held:
            return False
        self._run.log({name: self._shown(value) for name, value in shown_values(record)} | place)
        self._run.summary.update(changed)
        return True

    def log_samples(self, step: int, samples: Sequence[SampledEpisode]) -> None:
        """See SampleTracker. Each table takes the place of the one before; wandb keeps all of them, by step."""
        rows = [[_cell(getattr(sample, name)) for name in COLUMNS] for sample in samples]
        self._log_table(step, SampleTable(list(COLUMNS), rows))

    def _log_table(self, step: int, samples: SampleTable) -> None:
        table = self._wandb.Table(columns=samples.columns, data=samples.data)
        self._run.log({"samples": table, "step": step})

    def close(self) -> None:
        """See Tracker."""
        self._run.finish()

    def _shown(self, value: float | list[int]) -> Any:
        if not isinstance(value, list):
            return value
        counts = [*value[: MAX_BINS - 1], sum(value[MAX_BINS - 1 :])] if len(value) > MAX_BINS else value
        edges = list(range(len(counts) + 1))
        return self._wandb.Histogram(np_histogram=(counts, edges))


class _HeldRows:
    """Know which rows the server holds of a run that goes on, by the summary that came with them.

    wandb cannot take rows back. Where a killed run had uploaded steps that are cut back and trained again, the rows
    that it had uploaded stay, and those of the same steps are not logged a second time.
    """

    def __init__(self, summary: Mapping[str, float]) -> None:
        self._summary = dict(summary)

    def __contains__(self, record: Record) -> bool:
        names = [f"final/{suite}/step" for suite in accuracies(record)] or ["final/step"]
        version = number(record, "policy_version")
        return all(version <= self._summary.get(name, -1) for name in names)


def _patterns() -> list[str]:
    """Return patterns of all names but those of axes. No two match one name, because wandb may take either."""
    names = [*METRICS, OF_OBJECTIVE, "by_age/", "samples"]
    rooms = {f"{name.partition('/')[0]}/*" if "/" in name else name for name in names}
    return sorted(rooms - set(AXES))


def _cell(value: Any) -> Any:
    """Write named numbers as text, because cells of one column have one type."""
    return ", ".join(f"{name} {number:g}" for name, number in value.items()) if isinstance(value, dict) else value
