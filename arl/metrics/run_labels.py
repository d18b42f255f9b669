"""Label a run for trackers by what matters when runs are compared, without what may be secret."""

from typing import Any

MAX_TAG = 64  # characters that wandb accepts
REDACTED = "(left out)"


def redacted(config: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe without the values of environment variables, which may be secrets whatever their names are."""
    copy = dict(config)
    for section, fields in config.items():
        if isinstance(fields, dict) and fields.get("environment"):
            copy[section] = fields | {"environment": dict.fromkeys(fields["environment"], REDACTED)}
    return copy


def has_environment(config: dict[str, Any]) -> bool:
    """Return whether the recipe gives environment variables to some processes."""
    return any(isinstance(fields, dict) and bool(fields.get("environment")) for fields in config.values())


def comparable(config: dict[str, Any]) -> dict[str, str | int | float]:
    """Return what runs differ by in most comparisons. A run has either a staleness or a lag; "inf" is no bound."""
    rollout = config["rollout"]
    train = config["train"]
    flat = {
        "objective": config["objective"]["kind"],
        "proximal": config["objective"].get("proximal", "none"),
        "advantage": config["advantage"]["kind"],
        "backend": config["engine"]["kind"],
        "mode": config["mode"],
        "world": config["world"],
        "seed": config["seed"],
        "learning_rate": train["learning_rate"],
        "minibatches": train["minibatches"],
        "problems_per_step": rollout["problems_per_step"],
        "group_size": rollout["group_size"],
    }
    lag = rollout["lag"]
    if lag is None:
        flat["staleness"] = "inf" if rollout["staleness"] is None else str(rollout["staleness"])
    elif isinstance(lag, int):
        flat["lag"] = str(lag)
    else:
        flat["lag"] = next(str(file) for file in lag.values() if file is not None)
    return flat


def tags(config: dict[str, Any], more: str = "") -> tuple[str, ...]:
    """Return the tags of a run: what matters, then `more`, which are separated by commas; each once."""
    flat = comparable(config)
    age = "staleness" if "staleness" in flat else "lag"
    ours = [flat["objective"], f"{age}={flat[age]}", flat["mode"], flat["world"], flat["backend"]]
    short = [str(tag)[-MAX_TAG:] for tag in [*ours, *filter(None, more.split(","))]]
    return tuple(dict.fromkeys(short))
