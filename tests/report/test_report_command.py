"""`arl report` reads real runs, prints the same for the same files, and refuses bad input by name."""

import contextlib
import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from arl.cli import app
from arl.config.recipe_file import load_recipe
from arl.metrics.console import ConsoleDisplay
from arl.run.train import train
from tests.report.synthetic_runs import write_run, write_sweep
from tests.run.virtual.test_virtual import RECIPE


def report(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["report", *arguments])


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train two tiny virtual runs that differ in the bound."""
    directory = tmp_path_factory.mktemp("study")
    (directory / "small.yaml").write_text(RECIPE)
    display = ConsoleDisplay(Console(file=io.StringIO()))
    for bound in (0, 2):
        settings = [f"rollout.staleness={bound}", "train.steps=2", "eval.every=1", f"name=bound-{bound}"]
        train(load_recipe(directory / "small.yaml", [*settings, f"output.directory={directory / 'runs'}"]), display)
    return directory / "runs"


def test_a_report_of_real_runs_says_what_they_recorded(study: Path) -> None:
    result = report(str(study), "--json")
    assert result.exit_code == 0
    numbers = json.loads(result.stdout)
    fresh, stale = numbers["arms"]
    assert (fresh["name"], stale["name"]) == ("staleness=0", "staleness=2")
    for arm, name in ((fresh, "bound-0"), (stale, "bound-2")):
        summary = json.loads((study / name / "summary.json").read_text())
        last = {value["quantity"]: value["estimate"]["mean"] for value in arm["values"] if value["at"] == "last"}
        assert last["accuracy on held_out"] == pytest.approx(summary["accuracy_after"])
        assert sum(arm["trainer_time"].values()) == pytest.approx(1)
    assert fresh["means"]["token_age/mean"]["mean"] == 0
    assert stale["means"]["token_age/mean"]["mean"] > 0
    scores = [found for found in numbers["differences"] if found["quantity"] == "accuracy on held_out"]
    assert [found["at"] for found in scores] == ["step 2"]


def test_budgets_are_columns_and_bad_ones_are_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    shown = report(str(tmp_path), "--at-steps", "5,10", "--at-tokens", "1e3").stdout
    assert "step 5" in shown
    assert "1,000 tokens" in shown
    refused = report(str(tmp_path), "--at-steps", "five")
    assert refused.exit_code == 2
    assert "--at-steps five: could not convert string to float: 'five'; write it as --at-steps 20,50" in refused.output


@pytest.mark.parametrize(("name", "rule"), [("nowhere", "is no directory"), ("", "no run in it or below")])
def test_a_path_without_a_run_is_refused(tmp_path: Path, name: str, rule: str) -> None:
    refused = report(str(tmp_path / name))
    assert refused.exit_code == 2
    assert f"{tmp_path / name}: {rule}; give directories of runs" in refused.output.replace("\n", "")


def test_files_for_a_paper_are_written_before_the_text_that_nobody_may_read(tmp_path: Path) -> None:
    write_sweep(tmp_path / "a_sweep", [0, 8], ["ppo"], seeds=3)
    command = [
        sys.executable,
        "-m",
        "arl.cli",
        "report",
        str(tmp_path / "a_sweep"),
        "--out",
        str(tmp_path / "paper.html"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.close()  # as `| head -0` does
    files = {str(file.relative_to(tmp_path / "paper")) for file in (tmp_path / "paper").rglob("*.*")}
    assert {"numbers.json", "figures/accuracy-on-held-out-percent-over-training-steps.svg"} < files
    table = tmp_path / "paper" / "tables" / "accuracy-on-held-out-percent"
    header, *rows = csv.reader(table.with_suffix(".csv").open())
    assert header == ["arm", "seeds", "before", "last"]
    assert [row[0] for row in rows] == ["staleness=0", "staleness=8"]
    lines = table.with_suffix(".tex").read_text().splitlines()
    assert lines[0] == r"\begin{tabular}{lrrr}"
    assert lines[4].startswith(r"staleness=0 & 3 & 11.0 {[}")
    assert r"quantity & at" in (tmp_path / "paper" / "tables" / "differences-between-arms.tex").read_text()
    assert r"accuracy on held\_out" in (tmp_path / "paper" / "tables" / "differences-between-arms.tex").read_text()
    for figure in (tmp_path / "paper" / "figures").iterdir():
        ElementTree.parse(figure)
    assert "<h1>a_sweep</h1>" in (tmp_path / "paper.html").read_text()


def test_a_directory_that_is_named_is_filled_and_nothing_is_written_beside_it(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    (tmp_path / "papers").mkdir()
    with contextlib.chdir(tmp_path / "papers"):
        for place in (".", str(tmp_path / "papers"), "."):
            assert report(str(tmp_path / "run"), "--out", place).exit_code == 0
            assert sorted(path.name for path in tmp_path.iterdir()) == ["papers", "run"]
            assert sorted(path.name for path in Path().iterdir()) == ["report", "report.html"]


def test_the_page_of_real_runs_is_the_same_each_time_and_names_no_path_of_this_machine(
    study: Path, tmp_path: Path
) -> None:
    pages = []
    for name in ("one.html", "two.html"):
        assert report(str(study), "--out", str(tmp_path / name)).exit_code == 0
        pages.append((tmp_path / name).read_bytes())
    assert pages[0] == pages[1]
    assert str(study.parent).encode() not in pages[0]
    assert b"staleness=2" in pages[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "one.html", "two", "two.html"]
