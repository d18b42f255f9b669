"""A run's labels say what matters in a comparison, and hold no secret."""

import json
from typing import Any

import pytest

from arl.config.recipe import Recipe
from arl.metrics.run_labels import REDACTED, comparable, redacted, tags


def config(**sections: Any) -> dict[str, Any]:
    needed = {"model": {"path": "m"}, "data": {"path": "d"}}
    return Recipe.model_validate(needed | sections).model_dump(mode="json")


def test_tags_say_objective_age_rule_mode_world_and_backend() -> None:
    assert tags(config()) == ("decoupled_ppo", "staleness=4", "disaggregated", "wall", "embedded")
    lagged = config(rollout={"lag": 4}, objective="ppo", world="virtual")
    assert tags(lagged, "ppo,mine") == ("ppo", "lag=4", "disaggregated", "virtual", "embedded", "mine")


def test_a_run_has_a_staleness_or_a_lag_and_a_lag_from_a_file_has_its_name() -> None:
    assert comparable(config(rollout={"staleness": 8}))["staleness"] == "8"
    from_file = comparable(config(rollout={"lag": {"dist": "lags.json"}}))
    assert from_file["lag"] == "lags.json"
    assert "staleness" not in from_file


@pytest.mark.parametrize("section", ["engine", "train", "reward"])
def test_values_of_environment_variables_never_reach_a_tracker_whatever_they_are_called(section: str) -> None:
    given = config(**{section: {"environment": {"PROXY": "http://user:hunter2@proxy"}}})
    shown = redacted(given)
    assert "hunter2" in json.dumps(given)
    assert "hunter2" not in json.dumps(shown)
    assert shown[section]["environment"] == {"PROXY": REDACTED}
