"""Print the tables of the study as Markdown: python docs/results/staleness/tables.py docs/results/staleness"""

import json
import sys
from pathlib import Path
from typing import Any

Arm = dict[str, Any]

BUDGETS = ("step 20", "last", "90,000 tokens")
PAPER_KTOKENS = {0: 27.1, 1: 47.8, 2: 47.8, 4: 49.0, 8: 51.5, 16: 52.0}  # arXiv 2505.24298, 8 GPUs
OBJECTIVES = {"ppo": "naive", "recompute": "decoupled, recompute", "loglinear": "decoupled, loglinear"}


def main(directory: Path) -> None:
    print("## Accuracy\n")
    print("\n".join(accuracy_table(arms_of(directory / "staleness.json"))))
    print("\n## Lag and learning rate\n")
    print("\n".join(phase_table(arms_of(directory / "lag-and-learning-rate.json"))))
    print("\n## Speed\n")
    print("\n".join(speed_table(arms_of(directory / "speed.json"))))


def arms_of(file: Path) -> list[Arm]:
    arms: list[Arm] = json.loads(file.read_text())["arms"]
    return arms


def row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def head(cells: list[str]) -> list[str]:
    return [row(cells), row(["---"] * len(cells))]


def accuracy_table(arms: list[Arm]) -> list[str]:
    """Write a row for each bound and objective: accuracy at each budget with its 95 % interval.

    The figure has what is left out: step 30, the bounds 1 and 2, and the log-linear approximation.
    """
    lines = head(["η", "objective", *BUDGETS, "mean age"])
    shown = [arm for arm in arms if objective_of(arm) != OBJECTIVES["loglinear"] and bound_of(arm) not in (1, 2)]
    for arm in sorted(shown, key=lambda arm: (bound_of(arm), list(OBJECTIVES.values()).index(objective_of(arm)))):
        bound = bound_of(arm)
        label = "∞" if bound == float("inf") else f"{bound:.0f}"
        values = [accuracy(arm, budget) for budget in BUDGETS]
        age = arm["means"]["token_age/mean"]["mean"]
        lines.append(row([label, objective_of(arm), *values, f"{age:.1f}"]))
    return lines


def phase_table(arms: list[Arm]) -> list[str]:
    """Write a row for each objective and learning rate, a column for each lag: accuracy after the last step."""
    lags = sorted({arm["settings"]["rollout.lag"] for arm in arms})
    rates = sorted({arm["settings"]["train.learning_rate"] for arm in arms})
    lines = head(["objective", "learning rate", *(f"lag {lag}" for lag in lags)])
    for objective in ("naive", "decoupled, recompute"):
        for rate in rates:
            cells = []
            for lag in lags:
                settings = {"rollout.lag": lag, "train.learning_rate": rate}
                cells += [
                    accuracy(arm, "last")
                    for arm in arms
                    if objective_of(arm) == objective and settings.items() <= arm["settings"].items()
                ]
            lines.append(row([objective, f"{rate:g}", *cells]))
    return lines


def speed_table(arms: list[Arm]) -> list[str]:
    """Write tokens a second of every layout and bound, and beside it the paper's, both relative to η = 0."""
    by_layout = {(layout_of(arm), bound_of(arm)): arm["tokens_per_second"]["mean"] for arm in arms}
    base = by_layout["interruptible", 0.0]
    lines = head(["η", "interruptible", "drained", "tail-batched", "paper, interruptible"])
    for bound, paper in PAPER_KTOKENS.items():
        cells = []
        for layout in ("interruptible", "drained", "tail-batched"):
            rate = by_layout.get((layout, float(bound)))
            cells.append("–" if rate is None else f"{rate / base:.2f}")
        lines.append(row([str(bound), *cells, f"{paper / PAPER_KTOKENS[0]:.2f}"]))
    return lines


def bound_of(arm: Arm) -> float:
    bound = arm["settings"]["rollout.staleness"]
    return float("inf") if bound is None else float(bound)


def objective_of(arm: Arm) -> str:
    settings = arm["settings"]
    kind = settings["objective.kind"]
    return OBJECTIVES["ppo" if kind == "ppo" else settings.get("objective.proximal") or "recompute"]


def layout_of(arm: Arm) -> str:
    settings = arm["settings"]
    if settings["rollout.tail_batching"]:
        return "tail-batched"
    return "interruptible" if settings["sync.interrupt"] else "drained"


def accuracy(arm: Arm, budget: str) -> str:
    for value in arm["values"]:
        if value["quantity"].startswith("accuracy") and value["at"] == budget and value["estimate"] is not None:
            return percent(value["estimate"])
    return "–"


def percent(estimate: dict[str, Any]) -> str:
    mean = 100 * estimate["mean"]
    if estimate["low"] is None:  # one seed
        return f"{mean:.1f}"
    return f"{mean:.1f} [{100 * estimate['low']:.1f}, {100 * estimate['high']:.1f}]"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
