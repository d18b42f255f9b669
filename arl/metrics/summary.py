"""Summarize a run in a page, which is printed at its end and kept as summary.json."""

import hashlib
import itertools
from pathlib import Path

from msgspec import Struct
from safetensors import safe_open

from arl.config.recipe import Recipe
from arl.metrics.audit import Selection
from arl.metrics.names import Record, number
from arl.models.model_files import tensors_in
from arl.types import PauseParts

BAR_WIDTH = 40  # characters that stand for all trained tokens


class TrainerMemory(Struct, frozen=True):
    """Compare the memory of the rank that used most with what was planned for it, in GB of 10^9 bytes."""

    measured: float  # allocated on its GPU, or resident on a CPU: hardware/memory_gb
    predicted: float | None  # allocated on its GPU; None: it computed on a CPU, or the model is a tiny one


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
    pause: dict[str, float]  # mean seconds of a swap's "pause" and of its parts; empty: there was no swap
    weights_sha256: str  # of the last checkpoint: see `weights_sha256`
    trainer_memory: TrainerMemory | None = None  # None: engines computed in the trainer's process

    @property
    def stale_fraction(self) -> float:
        """Return the share of trained tokens with age ≥ 1."""
        fresh = self.token_ages.get(0, 0)
        total = sum(self.token_ages.values())
        return 1 - fresh / max(total, 1)


def mean_idle(records: list[Record], side: str) -> float:
    """Compute the mean of idle/`side` over the steps, weighted by their time."""
    ends = [0.0, *(number(record, "time_s") for record in records)]
    weights = [end - begin for begin, end in itertools.pairwise(ends)]
    idle = [number(record, f"idle/{side}") for record in records]
    idle_seconds = sum(weight * share for weight, share in zip(weights, idle, strict=True))
    return idle_seconds / max(sum(weights), 1e-9)


def mean_pause(records: list[Record]) -> dict[str, float]:
    """Compute the mean of the last pause of each step with a swap, and of its parts, in seconds."""
    swapped = [record for record in records if number(record, "sync/swaps")]
    found = {}
    for name in ("pause", *PauseParts.__struct_fields__):
        values = [number(record, f"sync/{name}_seconds") for record in swapped]
        if values:
            found[name] = sum(values) / len(values)
    return found


def render(summary: Summary, recipe: Recipe) -> str:
    """Write the summary as plain text, at most a screen."""
    lines = [""]
    if summary.accuracy_before is not None and summary.accuracy_after is not None:
        lines.append(
            f"accuracy   {summary.accuracy_before:.3f} → {summary.accuracy_after:.3f}"
            f"   on {summary.eval_problems} held-out problems, temperature {recipe.eval.temperature:g}"
        )
    unit = recipe.world_traits.time_unit
    rate = summary.tokens_trained / max(summary.training_seconds, 1e-9)
    groups = ", ".join(f"{count} {fate}" for fate, count in summary.groups.items())
    total = max(sum(summary.token_ages.values()), 1)
    ages = []  # a bar for the share of trained tokens of each age
    for age, count in sorted(summary.token_ages.items()):
        bar = "█" * round(BAR_WIDTH * count / total)
        ages.append(f"    age {age}  {bar:{BAR_WIDTH}s} {count / total:4.0%}")
    lines += [
        f"time       {summary.seconds:.1f} {unit} in all, {summary.training_seconds:.1f} {unit} of RL "
        f"({summary.steps} steps)",
        f"tokens     {summary.tokens_trained:,} trained, {rate:,.0f} a second",
        f"groups     {groups}",
        *_selection(summary),
        f"idle       trainer {summary.idle_trainer:.0%}, engine {summary.idle_engine:.0%}",
        *_pause(summary),
        f"staleness  {summary.stale_fraction:.0%} of trained tokens were sampled by an older policy "
        f"({_rule(recipe)}); {summary.trajectories_spanning_versions} trajectories span versions",
        *ages,
        *_memory(summary.trainer_memory),
        f"weights    sha256 {summary.weights_sha256}",
        f"files      {summary.directory}",
        *(f"try next   {hint}" for hint in _hints(summary, recipe)),
    ]
    return "\n".join(lines)


def _pause(summary: Summary) -> list[str]:
    """Show the mean pause and its parts that take a millisecond."""
    if not summary.pause:
        return []
    whole, *parts = [(name, round(1e3 * seconds)) for name, seconds in summary.pause.items()]
    said = ", ".join(f"{name} {value}" for name, value in parts if value)
    return [f"pause      {whole[1]} ms for a swap" + (f": {said}" if said else "")]


def _memory(memory: TrainerMemory | None) -> list[str]:
    """Write what a rank took beside what was planned. A CPU counts Python and its libraries, which no plan has."""
    if memory is None:
        return []
    if memory.predicted is None:
        return [f"memory     a trainer rank had {memory.measured:.2f} GB resident at most, libraries included"]
    difference = memory.measured / memory.predicted - 1
    return [
        f"memory     a trainer rank allocated {memory.measured:.1f} GB of its GPU at most, {memory.predicted:.1f} GB "
        f"predicted ({difference:+.0%})"
    ]


def _selection(summary: Summary) -> list[str]:
    """Compare the populations in a table, if any group was lost."""
    if not summary.selection.num_lost:
        return []
    lines = [f"{'selection':14s}{'groups':>8s}{'mean length':>14s}{'mean reward':>14s}"]
    for name, population in summary.selection.populations().items():
        if not population.groups:
            continue
        length = f"{population.length.mean:.4g}" if population.length.count else "–"
        reward = f"{population.reward.mean:.4g}" if population.reward.count else "–"
        intended = "  by rollout.filter or the env, as intended" if name == "rejected" else ""
        lines.append(f"    {name:10s}{population.groups:8,}{length:>14s}{reward:>14s}{intended}")
    return lines + [f"    warning: {line}" for line in summary.selection_bias]


def _rule(recipe: Recipe) -> str:
    """Name the rule that limits the age of a token."""
    rollout = recipe.rollout
    if rollout.lag is not None:
        return "exact lag"
    if rollout.is_unbounded:
        return f"no bound, at most {rollout.max_groups:,} groups in flight"
    return f"bound {rollout.staleness}"


def _hints(summary: Summary, recipe: Recipe) -> list[str]:
    """Suggest what to try next; nothing that the recipe has already."""
    hints = []
    rollout = recipe.rollout
    if rollout.staleness or rollout.is_unbounded:
        hints.append("--set rollout.staleness=0 --set name=sync: the same run, synchronous")
    if summary.idle_trainer > max(summary.idle_engine, 0.2):
        limit = "max_groups" if rollout.is_unbounded else "staleness"
        larger = f", or a larger rollout.{limit}" if rollout.lag is None else ""
        hints.append(f"the trainer waits: more engine threads or replicas{larger}")
    elif summary.idle_engine > 0.2:
        cheaper = f", or {recipe.objective.cheaper}" if recipe.objective.cheaper else ""
        hints.append(f"the engine waits: more train.threads or ranks{cheaper}")
    return hints + list(recipe.objective.try_next)


def weights_sha256(model: Path) -> str:
    """Compute the sha256 over the sorted names of the parameters, each followed by its raw float32 bytes.

    Args:
        model: a directory with safetensors files of float32, as those of checkpoints are.
    """
    digest = hashlib.sha256()
    stored = {
        name: tensor for path in sorted(model.glob("model*.safetensors")) for name, tensor in tensors_in(path).items()
    }
    for name in sorted(stored):
        tensor = stored[name]
        with safe_open(tensor.file, framework="numpy") as file:
            weight = file.get_tensor(name)
        digest.update(name.encode())
        digest.update(weight.data)
    return digest.hexdigest()
