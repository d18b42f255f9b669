"""`arl report --wandb` makes a saved view, or says what to click, and never prompts."""

import http.server
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import wandb

from arl.metrics.names import METRICS
from arl.report import wandb_view as views
from arl.report.wandb_view import instructions, wandb_view, workspace

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of wandb_workspaces, about pydantic


class Refusing(http.server.BaseHTTPRequestHandler):
    """Answer every request of an account with a refusal."""

    def do_GET(self) -> None:
        self.send_error(403, "no access")

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A server in wandb's place; there is no key."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{listening.server_port}"
        monkeypatch.setenv("WANDB_BASE_URL", url)
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("NETRC", str(tmp_path / "none"))
        monkeypatch.delenv("WANDB_API_KEY", raising=False)
        wandb.teardown()  # so that it reads its settings anew
        yield url
        wandb.teardown()
        listening.shutdown()
        thread.join()


def check_clickable(text: str) -> None:
    assert "filter     Group = study" in text
    assert json.dumps({"group": "study"}) in text
    assert "compare.objective, compare.proximal, compare.staleness, compare.lag" in text
    assert "axis/step, axis/tokens, axis/time_s" in text


def test_without_a_key_it_says_what_to_click(server: str) -> None:
    url, text = wandb_view("study", "arl")
    assert url is None
    assert text.startswith("no view was saved: there is no API key; run `wandb login`")
    check_clickable(text)


def test_without_the_package_it_says_how_to_install_it_and_what_to_click(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb_workspaces", None)
    _, text = wandb_view("study", "arl")
    assert "run `pip install -e '.[wandb-views]'`" in text
    check_clickable(text)


def test_an_account_that_may_not_is_given_what_to_click(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_ENTITY", "team")
    _, text = wandb_view("study", "arl")
    assert text.startswith(f"no view was saved: {server} does not save it (")
    assert "/team/arl" in text
    check_clickable(text)


def test_the_team_of_the_environment_is_the_one_whose_runs_are_shown(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_ENTITY", "team")
    _, text = wandb_view("study", "arl")
    assert "/team/arl" in text
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setattr(views, "_save", lambda group, project, entity: f"view of {entity}")
    assert wandb_view("study", "arl").url == "view of team"


def test_a_mistake_in_building_the_view_is_no_refusal(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_ENTITY", "team")
    monkeypatch.setattr(views, "_panels", lambda: {"a section": [("no axis", "reward")]})
    with pytest.raises(KeyError, match="no axis"):
        wandb_view("study", "arl")


def test_without_a_network_it_says_what_to_click(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setattr(views, "is_reachable", lambda url: False)
    _, text = wandb_view("study", "arl")
    assert f"no network, {server} does not answer" in text
    check_clickable(text)


def test_the_view_filters_by_the_group_and_groups_by_what_is_compared() -> None:
    view = workspace("study", "arl", "team")._to_model().model_dump(by_alias=True)
    (runs,) = view["spec"]["section"]["runSets"]
    (shown,) = runs["filters"]["filters"]
    assert (shown["key"]["name"], shown["value"]) == ("group", "study")
    keys = [key["name"] for key in runs["grouping"]]
    assert keys == [f"compare.value.{field}" for field in ("objective", "proximal", "staleness", "lag")]
    sections = view["spec"]["section"]["panelBankConfig"]["sections"]
    charts = [panel["config"] for section in sections for panel in section["panels"]]
    assert ("axis/tokens", ["eval/held_out/accuracy"]) in [(chart["xAxis"], chart["metrics"]) for chart in charts]
    assert "by_age/ratio/3-4" in {chart["metrics"][0] for chart in charts}


def test_charts_show_metrics_that_exist() -> None:
    names = {name for _, panels in views._panels().items() for _, name in panels}
    plain = {name for name in names if not name.startswith("by_age/")}
    assert plain <= set(METRICS)


def test_the_address_of_the_project_is_in_the_instructions() -> None:
    assert instructions("study", "https://wandb.example/team/arl").startswith(
        "runs       https://wandb.example/team/arl"
    )
