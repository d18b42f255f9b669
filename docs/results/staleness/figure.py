"""Draw the figure of the study: python docs/results/staleness/figure.py docs/results/staleness/staleness.json"""

import json
import sys
from pathlib import Path
from typing import Any

from tables import bound_of, objective_of  # the file beside this one

WIDTH, HEIGHT, LEFT, TOP, GAP = 250, 210, 44, 52, 26  # of a panel, and around it
BUDGETS = ("step 20", "step 30", "last")
TITLES = ("after 20 steps", "after 30 steps", "after all 60 steps")
LINES = {"naive": "#b5442e", "decoupled, recompute": "#2166ac", "decoupled, loglinear": "#1b8a5a"}
LOWEST = 30.0  # percent, at the bottom of a panel

Point = tuple[float, float, float]  # mean, low, high, percent


def main(file: Path) -> None:
    arms = json.loads(file.read_text())["arms"]
    print("\n".join(svg(arms)))


def svg(arms: list[dict[str, Any]]) -> list[str]:
    """Draw accuracy against the bound: a panel for each budget, a line for each objective, bars of 95 % intervals."""
    bounds = sorted({bound_of(arm) for arm in arms})
    width = LEFT + len(BUDGETS) * (WIDTH + GAP)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {TOP + HEIGHT + 44}" font-family="sans-serif" '
        'font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        *legend(),
    ]
    for number, (budget, title) in enumerate(zip(BUDGETS, TITLES, strict=True)):
        left = LEFT + number * (WIDTH + GAP)
        lines += axes(left, title, bounds)
        for name, color in LINES.items():
            points = {bound_of(arm): value_at(arm, budget) for arm in arms if objective_of(arm) == name}
            places = [(left + place(bounds.index(bound), len(bounds)), points[bound]) for bound in sorted(points)]
            lines += curve(places, color)
    return [*lines, "</svg>"]


def value_at(arm: dict[str, Any], budget: str) -> Point:
    for value in arm["values"]:
        if value["quantity"].startswith("accuracy") and value["at"] == budget:
            estimate = value["estimate"]
            return 100 * estimate["mean"], 100 * estimate["low"], 100 * estimate["high"]
    raise SystemExit(f"{arm['name']}: no accuracy at {budget}")


def place(index: int, count: int) -> float:
    return WIDTH * (index + 0.5) / count


def height(percent: float) -> float:
    return TOP + HEIGHT * (100 - percent) / (100 - LOWEST)


def legend() -> list[str]:
    lines = ['<text x="44" y="18" font-size="14">Held-out accuracy, %, against the staleness bound η</text>']
    for number, (name, color) in enumerate(LINES.items()):
        x = 400 + 155 * number
        lines.append(f'<rect x="{x}" y="9" width="16" height="4" fill="{color}"/>')
        lines.append(f'<text x="{x + 22}" y="16">{name}</text>')
    return lines


def axes(left: float, title: str, bounds: list[float]) -> list[str]:
    lines = [f'<text x="{left + WIDTH / 2}" y="{TOP - 10}" text-anchor="middle">{title}</text>']
    for percent in range(int(LOWEST), 101, 10):
        y = height(percent)
        lines.append(f'<line x1="{left}" x2="{left + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        lines.append(f'<text x="{left - 5}" y="{y + 4:.1f}" text-anchor="end" font-size="10">{percent}</text>')
    for index, bound in enumerate(bounds):
        x = left + place(index, len(bounds))
        label = "∞" if bound == float("inf") else f"{bound:.0f}"
        lines.append(f'<text x="{x:.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{label}</text>')
    lines.append(f'<text x="{left + WIDTH / 2}" y="{TOP + HEIGHT + 34}" text-anchor="middle">η, versions</text>')
    return lines


def curve(places: list[tuple[float, Point]], color: str) -> list[str]:
    path = " ".join(f"{x:.1f},{height(mean):.1f}" for x, (mean, _, _) in places)
    lines = [f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>']
    for x, (mean, low, high) in places:
        lines.append(f'<circle cx="{x:.1f}" cy="{height(mean):.1f}" r="3" fill="{color}"/>')
        top, bottom = height(high), height(low)
        lines.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}" stroke="{color}"/>')
    return lines


if __name__ == "__main__":
    main(Path(sys.argv[1]))
