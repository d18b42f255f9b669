"""Show a group of runs at Weights & Biases: make a saved view where that is possible, else say what to click.

    arl report --wandb GROUP ─► package, key, server, permission? ─► a saved view: its address
                                                             └─ no ─► the reason, and filter, grouping and axes to click

It never prompts: without a key it says so.
"""

import contextlib
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from arl.errors import InputError
from arl.metrics.names import AGE_BUCKETS
from arl.metrics.run_labels import GROUPED_BY
from arl.metrics.tracked_summary import AXIS_STEP, AXIS_TIME, AXIS_TOKENS
from arl.metrics.wandb_server import is_reachable, refuse_without_key

AXES = {AXIS_STEP: "step", AXIS_TOKENS: "trained tokens", AXIS_TIME: "seconds"}
LEARNED = ("reward/trained_mean", "eval/held_out/accuracy")
AGES = ("token_age/mean", "dispatch_age/mean", "queue_age/mean", "ratio/clip_fraction", "kl/behavior_proximal")
BY_AGE = ("ratio", "clip_up", "clip_down", "behavior_weight", "effective_sample_size", "kl_behavior_proximal")


class WandbView(NamedTuple):
    """Say what was made, or what to click."""

    url: str | None  # of a saved view; None: none was made
    text: str


class _NotSavedError(Exception):
    """Say why the service did not save a view."""


def wandb_view(group: str, project: str) -> WandbView:
    """Make a saved view of the runs of `group`, or describe it. They belong to WANDB_ENTITY, or else to the key's user.

    Args:
        group: `output.wandb_group` of the runs, which is the name of their sweep or recipe.
        project: `output.wandb_project`.
    """
    import wandb
    from wandb.util import app_url

    quiet = wandb.Settings(silent=True)  # without it wandb would prompt in a terminal, if it finds no key
    settings = wandb.setup(quiet).settings
    base_url = str(settings.base_url)
    page = f"{app_url(base_url)}/{settings.entity or '<your user or team>'}/{project}"
    reason = _why_not(base_url)
    if reason is None:
        try:
            url = _save(group, project, settings.entity)
        except _NotSavedError as error:
            reason = f"{base_url} does not save it ({error})"
        else:
            return WandbView(url, f"saved view of group {group}: {url}")
    return WandbView(None, f"no view was saved: {reason}.\n\n{instructions(group, page)}")


def _why_not(base_url: str) -> str | None:
    """Return what a saved view lacks, before anything is asked of the account; None: nothing."""
    try:
        import wandb_workspaces  # noqa: F401 - an optional package
    except ImportError:
        return "the package wandb-workspaces is not installed; run `pip install -e '.[wandb-views]'` in arl's checkout"
    try:
        refuse_without_key()
    except InputError:
        return "there is no API key; run `wandb login`, or set WANDB_API_KEY"
    if not is_reachable(base_url):
        return f"no network, {base_url} does not answer"
    return None


def _save(group: str, project: str, entity: str | None) -> str:
    """Save the view, and return its address.

    Raises:
        _NotSavedError: the service does not save it.
    """
    import wandb

    with _asking_the_service():
        owner = entity or str(wandb.Api().default_entity)
    view = workspace(group, project, owner)
    with _asking_the_service():
        view.save_as_new_view()
        return str(view.url)


@contextlib.contextmanager
def _asking_the_service() -> Iterator[None]:
    """Turn whatever a request to wandb raises into one error. Code of ours stays outside, so that its errors are seen.

    Versions of wandb raise `wandb.Error`, errors of requests, an error of a private module, or a plain Exception.
    """
    try:
        yield
    except Exception as error:
        raise _NotSavedError(f"{type(error).__name__}: {error}") from error


def workspace(group: str, project: str, entity: str) -> Any:
    """Build the view: runs of the group, grouped by what they are compared by; nothing is sent."""
    import wandb_workspaces.workspaces as ws

    return ws.Workspace(
        entity=entity,
        project=project,
        name=f"{group}: staleness",
        sections=[_section(name, panels) for name, panels in _panels().items()],
        runset_settings=ws.RunsetSettings(
            filters=ws.And(ws.Metric("Group") == group),
            groupby=[ws.Config(f"compare.{field}") for field in GROUPED_BY],
        ),
    )


def _section(name: str, panels: list[tuple[str, str]]) -> Any:
    import wandb_workspaces.reports.v2 as reports
    import wandb_workspaces.workspaces as ws

    plots = [reports.LinePlot(title=f"{y} against {AXES[x]}", x=x, y=[y], title_x=AXES[x]) for x, y in panels]
    return ws.Section(name=name, panels=plots, is_open=True)


def _panels() -> dict[str, list[tuple[str, str]]]:
    """Map each section to its charts: x and y."""
    return {
        "what was learned": [(axis, metric) for metric in LEARNED for axis in AXES],
        "how old the tokens were": [(AXIS_STEP, metric) for metric in AGES],
        **{
            f"{metric} by token age": [(AXIS_STEP, f"by_age/{metric}/{age}") for age in AGE_BUCKETS]
            for metric in BY_AGE
        },
    }


def instructions(group: str, page: str) -> str:
    """Say what to click, and give the filter for wandb's Python API."""
    fields = ", ".join(f"compare.{field}" for field in GROUPED_BY)
    axes = ", ".join(AXES)
    charts = ", ".join((*LEARNED, *AGES))
    lines = [
        f"runs       {page}",
        f"filter     Group = {group}",
        f"           as JSON, for wandb.Api().runs(…, filters=…): {json.dumps({'group': group})}",
        f"group by   {fields}        (button Group above the list of runs; keys of Config)",
        f"x axis     {axes}        (pencil of a chart, or gear of the workspace, then X Axis)",
        f"charts     {charts}, by_age/*",
    ]
    return "\n".join(lines)
