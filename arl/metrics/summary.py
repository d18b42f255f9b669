"""Summarize a run in a page, which is printed at its end and kept as summary.json."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from safetensors import safe_open

from arl.config.recipe import Recipe
from arl.metrics.audit import Selection
from arl.metrics.names import Record, number
from arl.models.model_files import tensors_in

BAR_WIDTH = 40  # characters that stand for all trained tokens


class Summary(Struct, frozen=True):
    """Hold the result of a run."""

    directory: str
    accuracy_before: float | None  # mean reward on held-out problems; None: no evaluation
    accuracy_after: float | None
    eval_problems: int
    seconds: float  # the whole command, warm-up and start-up included; in virtual time, evaluations and training
    training_seconds: float  # from the first admission to the last swap
    steps: int
    tokens_trained: int
    tokens_generated: int
    token_ages: dict[int, int]  # age -> trained tokens
    trajectories_spanning_versions: int
    groups: dict[str, int]  # fate -> groups; with those in flight at the end, every group that was admitted
    selection: Selection
    selection_bias: list[str]  # significant differences between trained and dropped groups
    idle_trainer: float
    idle_engine: float
    weights_sha256: str  # of the last checkpoint: see `weights_sha256`

    @property
    def stale_fraction(self) -> float:
        """Return the share of trained tokens with age ≥ 1."""
        fresh = self.token_ages.get(0, 0)
        total = sum(self.token_ages.values())
        return 1 - fresh / max(total, 1)


def mean_idle(records: list[Record], side: str) -> float:
    """Compute the mean of idle/`side` over the steps, weighted by their time."""
    seconds = sum(number(record, "time/step_s") for record in records)
    idle_seconds = sum(number(record, f"idle/{side}") * number(record, "time/step_s") for record in records)
    return idle_seconds / max(seconds, 1e-9)


def render(summary: Summary, recipe: Recipe, hints: Sequence[str]) -> str:
    """Write the summary as plain text, at most a screen, with what `arl report` suggests."""
    lines = [""]
    if summary.accuracy_before is not None and summary.accuracy_after is not None:
        lines.append(
            f"accuracy   {summary.accuracy_before:.3f} → {summary.accuracy_after:.3f}"
            f"   on {summary.eval_problems} held-out problems, temperature {recipe.eval.temperature:g}"
        )
    unit = recipe.world_traits.time_unit
    rate = summary.tokens_trained / max(summary.training_seconds, 1e-9)
    groups = ", ".join(f"{count} {fate}" for fate, count in summary.groups.items())
    lines += [
        f"time       {summary.seconds:.1f} {unit} in all, {summary.training_seconds:.1f} {unit} of RL "
        f"({summary.steps} steps)",
        f"tokens     {summary.tokens_trained:,} trained, {rate:,.0f} a second",
        f"groups     {groups}",
        *(_selection(summary) if summary.selection.num_lost else ()),
        f"idle       trainer {summary.idle_trainer:.0%}, engine {summary.idle_engine:.0%}",
        f"staleness  {summary.stale_fraction:.0%} of trained tokens were sampled by an older policy "
        f"({_rule(recipe)}); {summary.trajectories_spanning_versions} trajectories span versions",
    ]
    total = max(sum(summary.token_ages.values()), 1)
    for age, count in sorted(summary.token_ages.items()):
        bar = "█" * round(BAR_WIDTH * count / total)
        lines.append(f"    age {age}  {bar:{BAR_WIDTH}s} {count / total:4.0%}")
    lines += [
        *(["sandbox    unsafe: programs of the model ran as this user"] if recipe.sandbox.unsafe else ()),
        f"weights    sha256 {summary.weights_sha256}",
        f"files      {summary.directory}",
        *(f"try next   {hint}" for hint in hints),
    ]
    return "\n".join(lines)


def _selection(summary: Summary) -> list[str]:
    """Compare the populations in a table."""
    lines = [f"{'selection':14s}{'groups':>8s}{'mean length':>14s}{'mean reward':>14s}"]
    for name, population in summary.selection.populations().items():
        if population.groups:
            length = f"{population.length.mean:.4g}" if population.length.count else "–"
            reward = f"{population.reward.mean:.4g}" if population.reward.count else "–"
            intended = "  by rollout.filter or the env, as intended" if name == "rejected" else ""
            lines.append(f"    {name:10s}{population.groups:8,}{length:>14s}{reward:>14s}{intended}")
    return lines + [f"    warning: {line}" for line in summary.selection_bias]


def _rule(recipe: Recipe) -> str:
    """Name the rule that limits the age of a token."""
    rollout = recipe.rollout
    if rollout.is_unbounded:
        return f"no bound, at most {rollout.max_groups:,} groups in flight"
    return f"bound {rollout.staleness}" if rollout.lag is None else "exact lag"


def weights_sha256(model: Path) -> str:
    """Compute the sha256 over the sorted names of the parameters, each followed by its raw float32 bytes.

    Args:
        model: a directory with safetensors files of float32, as those of checkpoints are.
    """
    digest = hashlib.sha256()
    files = {name: path for path in model.glob("model*.safetensors") for name in tensors_in(path)}
    for name in sorted(files):
        with safe_open(files[name], framework="numpy") as file:
            digest.update(name.encode())
            digest.update(file.get_tensor(name).data)
    return digest.hexdigest()
