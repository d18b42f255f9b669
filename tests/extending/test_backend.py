"""A backend that a user adds by module:attribute trains like a built-in one, or is refused before anything starts."""

import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from arl.cli import app
from arl.engine.backend import find_backend
from arl.errors import RecipeError
from tests.extending.short_run import RECIPE, TRAJECTORIES

MINE = "tests.extending.my_backend"


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """A command of arl handles SIGTERM."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def train(directory: Path, kind: str, *overrides: str) -> Result:
    """`arl train`, with the backend `kind`."""
    (directory / "recipe.yaml").write_text(RECIPE)
    given = [f"output.directory={directory / 'runs'}", f"engine.kind={kind}", *overrides]
    flags = [part for override in given for part in ("--set", override)]
    return CliRunner().invoke(app, ["train", str(directory / "recipe.yaml"), *flags])


def test_a_users_engine_generates_what_is_trained(tmp_path: Path) -> None:
    done = train(tmp_path, f"{MINE}:PatternBackend", "engine.replicas=2")
    assert done.exit_code == 0, done.output
    rows = pq.read_table(tmp_path / "runs" / "short" / "trajectories").to_pylist()
    trained = [row for row in rows if row["fate"] == "trained"]
    assert len(trained) == TRAJECTORIES
    for row in trained:
        sampled = [t for t, v in zip(row["token_ids"], row["policy_versions"], strict=True) if v >= 0]
        assert len(sampled) == 16
        assert all(b in (a + 1, 0) for a, b in pairwise(sampled)), "consecutive ids, which begin again at 0"


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("WithoutProbe", "lacks the method"),
        ("WrongCommand", "cannot be called as command(server)"),
    ],
)
def test_what_is_no_whole_backend_is_refused_with_its_name_and_an_example(name: str, complaint: str) -> None:
    with pytest.raises(RecipeError) as refused:
        find_backend(f"{MINE}:{name}")
    message = str(refused.value)
    assert message.startswith(f"engine.kind '{MINE}:{name}': ")
    assert complaint in message
    assert "see arl.engine.embedded.embedded_backend:EmbeddedBackend" in message


@pytest.mark.parametrize(
    ("kind", "overrides", "complaint"),
    [
        ("ServersOnly", [], "cannot generate in this process as this world does; use embedded, or world wall"),
        ("PatternBackend", ["engine.kv_policy=keep"], "engine.kv_policy keep: the backend"),
        ("NotInstalled", [], "there is no my-server; pip install my-server"),
    ],
)
def test_a_recipe_that_asks_more_than_a_users_backend_can_do_starts_nothing(
    tmp_path: Path, kind: str, overrides: list[str], complaint: str
) -> None:
    done = train(tmp_path, f"{MINE}:{kind}", *overrides)
    assert done.exit_code == 2
    assert complaint in done.output
    assert not (tmp_path / "runs").exists()
