"""An env from outside of arl drives episodes of several turns; one with another signature is refused."""

from pathlib import Path

import pytest

from arl.errors import RecipeError
from tests.extending.short_run import ShortRun, trained_rows


def test_an_env_by_name_drives_episodes_whose_tool_text_is_not_trained(tmp_path: Path) -> None:
    summary = ShortRun(tmp_path, "rollout.env=tests.extending.my_env:ask_twice").train()
    rows = trained_rows(summary)
    assert rows
    for row in rows:
        sampled = sum(version >= 0 for version in row["policy_versions"])
        assert 2 <= sampled <= 8


@pytest.mark.parametrize(
    ("env", "complaint"),
    [
        ("without_session", "cannot be called as without_session(problem, session)"),
        ("not_async", "not_async must be async: write `async def not_async(problem, session)`"),
    ],
)
def test_an_env_with_another_signature_is_refused_beside_the_built_in(tmp_path: Path, env: str, complaint: str) -> None:
    with pytest.raises(RecipeError) as caught:
        ShortRun(tmp_path, f"rollout.env=tests.extending.my_env:{env}").check()
    assert complaint in str(caught.value)
    assert "see arl.rollout.env:single_turn" in str(caught.value)
