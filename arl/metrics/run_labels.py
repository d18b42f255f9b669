"""Label a run for trackers by what matters when runs are compared.

the recipe as JSON ─► tags: decoupled_ppo, staleness=8, disaggregated, wall, embedded
                   └► compare.*: the same and a few numbers, flat, each with one type, to group by
"""

from typing import Any

MAX_TAG = 64  # characters that wandb accepts
GROUPED_BY = ("objective", "proximal", "staleness", "lag")  # of `comparable`, in a comparison of staleness
REDACTED = "(left out)"


def redacted(config: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe without the values of environment variables, which may be secrets whatever their names are."""
    copy = dict(config)
    for section in _with_environment(config):
        fields = config[section]
        hidden = dict.fromkeys(fields["environment"], REDACTED)
        copy[section] = fields | {"environment": hidden}
    return copy


def has_environment(config: dict[str, Any]) -> bool:
    """Return whether the recipe gives environment variables to some processes."""
    return bool(_with_environment(config))


def _with_environment(config: dict[str, Any]) -> list[str]:
    return [section for section, fields in config.items() if isinstance(fields, dict) and fields.get("environment")]


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
    if rollout["lag"] is None:
        flat["staleness"] = _bound(rollout["staleness"])
    else:
        flat["lag"] = _lag(rollout["lag"])
    return flat


def tags(config: dict[str, Any]) -> tuple[str, ...]:
    """Return the tags of a run: what matters, then the recipe's own; each once."""
    flat = comparable(config)
    age = "staleness" if "staleness" in flat else "lag"
    ours = [
        flat["objective"],
        f"{age}={flat[age]}",
        flat["mode"],
        flat["world"],
        flat["backend"],
    ]
    theirs = config["output"]["wandb_tags"]
    short = [str(tag)[-MAX_TAG:] for tag in [*ours, *theirs]]
    return tuple(dict.fromkeys(short))


def _bound(staleness: int | None) -> str:
    return "inf" if staleness is None else str(staleness)


def _lag(lag: int | dict[str, Any]) -> str:
    """Name a lag: its number, or the file that lags are read from."""
    if isinstance(lag, int):
        return str(lag)
    return next(str(file) for file in lag.values() if file is not None)
