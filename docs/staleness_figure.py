"""Draw docs/staleness.svg from a run: python docs/staleness_figure.py runs/quickstart > docs/staleness.svg"""

import json
import sys
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, LEFT, TOP = 720, 260, 46, 34
COLORS = ["#d9e6f2", "#a9c9e4", "#6ea3d0", "#3577b1", "#174a7c", "#0b2747", "#000000"]


def main(run: Path) -> None:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if "token_age/histogram" in record]
    bound = next(
        int(line.split()[1]) for line in (run / "recipe.yaml").read_text().splitlines() if "staleness:" in line
    )
    print("\n".join(svg(steps, bound)))


def svg(steps: list[dict[str, Any]], bound: int) -> list[str]:
    """Per step, a bar of the trained tokens' ages, and above it the oldest of them beside the bound."""
    bar = (WIDTH - LEFT - 90) / len(steps)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT + TOP + 40}" font-family="sans-serif" '
        'font-size="12">',
        f'<text x="{LEFT}" y="18">Age of the trained tokens, in versions, step by step (bound {bound})</text>',
    ]
    for i, record in enumerate(steps):
        counts, below = record["token_age/histogram"], 0.0
        for age, count in enumerate(counts):
            share = count / sum(counts)
            y = TOP + HEIGHT * (1 - below - share)
            lines.append(
                f'<rect x="{LEFT + i * bar:.2f}" y="{y:.2f}" width="{bar:.2f}" height="{HEIGHT * share:.2f}" '
                f'fill="{COLORS[min(age, 6)]}"><title>step {record["step"]}: {share:.0%} aged {age}</title></rect>'
            )
            below += share
    for share in (0.0, 0.5, 1.0):
        y = TOP + HEIGHT * (1 - share)
        lines.append(f'<text x="{LEFT - 6}" y="{y + 4:.0f}" text-anchor="end">{share:.0%}</text>')
    for step in (1, len(steps) // 2, len(steps)):
        lines.append(f'<text x="{LEFT + step * bar:.0f}" y="{TOP + HEIGHT + 16}" text-anchor="end">{step}</text>')
    lines.append(f'<text x="{LEFT}" y="{TOP + HEIGHT + 32}">training step</text>')
    oldest = max(len(record["token_age/histogram"]) for record in steps)
    for age in range(oldest):
        y = TOP + 20 * age
        lines.append(f'<rect x="{WIDTH - 78}" y="{y}" width="14" height="14" fill="{COLORS[min(age, 6)]}"/>')
        lines.append(f'<text x="{WIDTH - 58}" y="{y + 12}">age {age}</text>')
    return [*lines, "</svg>"]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
