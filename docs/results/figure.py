"""Draw the figure of a study: python docs/results/figure.py docs/results/staleness/staleness.json

The file is made by `arl report --json`; its name says which study.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from staleness.tables import Arm, bound_of, objective_of  # the folder beside this file

WIDTH, HEIGHT, LEFT, TOP, GAP = 250, 210, 44, 52, 26  # of a panel, and around it
COLORS = ("#b5442e", "#2166ac", "#1b8a5a", "#8a5a9e")

Point = tuple[float, float, float]  # mean, low, high, percent


class Study(NamedTuple):
    """Say what a figure shows."""

    axis: str
    budgets: dict[str, str]  # of the report -> title of the panel
    lowest: float  # percent, at the bottom of a panel
    lines: tuple[str, ...]
    line_of: Callable[[Arm], str]
    place_of: Callable[[Arm], float]


def teacher_of(arm: Arm) -> str:
    return str(Path(arm["runs"][0]).parent.name.partition(",")[0])


def lag_of(arm: Arm) -> float:
    return float(arm["settings"]["rollout.lag"])


STUDIES = {
    "staleness": Study(
        axis="η, versions",
        budgets={"step 20": "after 20 steps", "step 30": "after 30 steps", "last": "after all 60 steps"},
        lowest=30,
        lines=("naive", "decoupled, recompute", "decoupled, loglinear"),
        line_of=objective_of,
        place_of=bound_of,
    ),
    "distillation": Study(
        axis="age of every trained token, versions",
        budgets={"step 10": "after 10 steps", "step 20": "after 20 steps", "last": "after all 60 steps"},
        lowest=80,
        lines=("rewards", "reverse-sampled", "reverse-top-8", "forward-top-8"),
        line_of=teacher_of,
        place_of=lag_of,
    ),
}


def main(file: Path) -> None:
    arms = json.loads(file.read_text())["arms"]
    print("\n".join(svg(arms, STUDIES[file.stem])))


def svg(arms: list[Arm], study: Study) -> list[str]:
    """Draw accuracy against the age: a panel for each budget, a line for each kind of arm, bars of 95 % intervals."""
    places = sorted({study.place_of(arm) for arm in arms})
    width = LEFT + len(study.budgets) * (WIDTH + GAP)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {TOP + HEIGHT + 44}" font-family="sans-serif" '
        'font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        *legend(study),
    ]
    for number, (budget, title) in enumerate(study.budgets.items()):
        left = LEFT + number * (WIDTH + GAP)
        lines += axes(study, left, title, places)
        for name, color in zip(study.lines, COLORS, strict=False):
            points = {study.place_of(arm): value_at(arm, budget) for arm in arms if study.line_of(arm) == name}
            at = [(left + x_of(places.index(place), len(places)), points[place]) for place in sorted(points)]
            lines += curve(study, at, color)
    return [*lines, "</svg>"]


def value_at(arm: Arm, budget: str) -> Point:
    for value in arm["values"]:
        if value["quantity"].startswith("accuracy") and value["at"] == budget:
            estimate = value["estimate"]
            return 100 * estimate["mean"], 100 * estimate["low"], 100 * estimate["high"]
    raise SystemExit(f"{arm['name']}: no accuracy at {budget}")


def x_of(index: int, count: int) -> float:
    return WIDTH * (index + 0.5) / count


def y_of(study: Study, percent: float) -> float:
    return TOP + HEIGHT * (100 - percent) / (100 - study.lowest)


def legend(study: Study) -> list[str]:
    lines = ['<text x="44" y="18" font-size="14">Held-out accuracy, %</text>']
    for number, (name, color) in enumerate(zip(study.lines, COLORS, strict=False)):
        x = 245 + 155 * number
        lines.append(f'<rect x="{x}" y="9" width="16" height="4" fill="{color}"/>')
        lines.append(f'<text x="{x + 22}" y="16">{name}</text>')
    return lines


def axes(study: Study, left: float, title: str, places: list[float]) -> list[str]:
    lines = [f'<text x="{left + WIDTH / 2}" y="{TOP - 10}" text-anchor="middle">{title}</text>']
    for percent in range(int(study.lowest), 101, 10 if study.lowest < 60 else 5):
        y = y_of(study, percent)
        lines.append(f'<line x1="{left}" x2="{left + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        lines.append(f'<text x="{left - 5}" y="{y + 4:.1f}" text-anchor="end" font-size="10">{percent}</text>')
    for index, place in enumerate(places):
        x = left + x_of(index, len(places))
        label = "∞" if place == float("inf") else f"{place:.0f}"
        lines.append(f'<text x="{x:.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{label}</text>')
    lines.append(f'<text x="{left + WIDTH / 2}" y="{TOP + HEIGHT + 34}" text-anchor="middle">{study.axis}</text>')
    return lines


def curve(study: Study, at: list[tuple[float, Point]], color: str) -> list[str]:
    path = " ".join(f"{x:.1f},{y_of(study, mean):.1f}" for x, (mean, _, _) in at)
    lines = [f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>']
    for x, (mean, low, high) in at:
        lines.append(f'<circle cx="{x:.1f}" cy="{y_of(study, mean):.1f}" r="3" fill="{color}"/>')
        top, bottom = y_of(study, high), y_of(study, low)
        lines.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}" stroke="{color}"/>')
    return lines


if __name__ == "__main__":
    main(Path(sys.argv[1]))
