"""Print the table of the study, and keep its numbers in objectives.json beside this file.

python docs/results/objectives/table.py SWEEP.json REPLAYS.json      both made by `arl report DIRECTORY --json`
"""

import json
import sys
from pathlib import Path
from typing import Any

BOUNDS = ("0", "8", "16")
OF_REPLAYS = {  # metric -> how its mean over the steps is printed
    "ratio/clip_fraction": "{:.2%}",
    "behavior_weight/effective_sample_size": "{:.3f}",
}
Numbers = dict[str, Any]


def main(sweep: Path, replays: Path) -> None:
    numbers: dict[str, Numbers] = {}
    for arm in arms_of(sweep):
        name, _, _ = Path(arm["runs"][0]).parent.name.partition(",")
        numbers.setdefault(name, {})[str(arm["settings"]["rollout.staleness"])] = accuracy(arm)
    for arm in arms_of(replays):
        means = {metric: (arm["means"].get(metric) or {}).get("mean") for metric in OF_REPLAYS}
        numbers.setdefault(arm["name"], {})["replay"] = {"accuracy": accuracy(arm)["mean"], **means}
    lines = [f"{json.dumps(name)}: {json.dumps(found)}" for name, found in numbers.items()]
    Path(__file__).with_name("objectives.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print("| arm | η = 0 | η = 8 | η = 16 | replay | clipped | sample size |")
    print("|---|---|---|---|---|---|---|")
    for name, found in sorted(
        numbers.items(), key=lambda item: -sum(item[1].get(b, {"mean": 0})["mean"] for b in BOUNDS)
    ):
        print(f"| {' | '.join([name, *row(found)])} |")


def arms_of(file: Path) -> list[Numbers]:
    arms: list[Numbers] = json.loads(file.read_text())["arms"]
    return arms


def accuracy(arm: Numbers) -> Numbers:
    """Return mean and interval of the accuracy after the last step, in percent."""
    (estimate,) = (
        value["estimate"] for value in arm["values"] if value["quantity"].startswith("acc") and value["at"] == "last"
    )
    return {key: estimate[key] and round(100 * estimate[key], 2) for key in ("mean", "low", "high")}


def row(found: Numbers) -> list[str]:
    cells = [f"{found[bound]['mean']:.1f}" if bound in found else "" for bound in BOUNDS]
    replay = found.get("replay", {})
    cells.append(f"{replay['accuracy']:.1f}" if replay else "")
    return cells + ["" if replay.get(name) is None else form.format(replay[name]) for name, form in OF_REPLAYS.items()]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
