"""Tell which runs have measured the same: a protocol is what decides what an accuracy or a reward means."""

from collections.abc import Iterable
from typing import Any

from arl.report.arms import field_value
from arl.report.read_runs import LoadedRun, some

ACCURACY_FIELDS = ("data.", "eval.", "reward.function.")
REWARD_FIELDS = ("data.", "reward.")
ANY_VALUE = ("eval.every", "eval.suites", "reward.workers", "reward.memory_gb", "reward.environment")
STANDS_FOR = {"eval.max_new_tokens": "rollout.max_new_tokens"}  # null in the first is the value of the second
Protocol = tuple[tuple[str, bytes], ...]  # fields in which the runs of a report differ, and their values


def deciding_fields(differing: Iterable[str], is_accuracy: bool) -> list[str]:
    """Return those of the fields in which runs differ that decide what an accuracy, or else a reward, means."""
    fields = list(differing)
    fields += [field for field, other in STANDS_FOR.items() if other in fields and field not in fields]
    prefixes = ACCURACY_FIELDS if is_accuracy else REWARD_FIELDS
    decisive = [field for field in fields if f"{field}.".startswith(prefixes)]
    return [field for field in decisive if field not in ANY_VALUE]


def protocol_of(run: LoadedRun, fields: Iterable[str]) -> Protocol:
    """Return the values of the fields in a run's recipe."""
    return tuple((field, _meaning(run.recipe, field)) for field in fields)


def _meaning(recipe: dict[str, Any], field: str) -> bytes:
    """Return the value of a field, or of the field that its null stands for."""
    if field in STANDS_FOR and recipe.get(field) is None:
        return field_value(recipe, STANDS_FOR[field])
    return field_value(recipe, field)


def unlike_fields(protocols: Iterable[Protocol]) -> list[str]:
    """Say in a sentence in which fields runs have measured unlike things; nothing if they did not."""
    fields = dict.fromkeys(field for protocol in protocols for field, _ in protocol)
    if not fields:
        return []
    names = some(list(fields), "", "")
    return [
        f"The runs differ in {names}. Accuracies and rewards are compared only between runs that measured them alike; "
        "speed and staleness are compared between all."
    ]
