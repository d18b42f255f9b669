"""`arl report` reads real runs, prints the same for the same files, and refuses bad input by name."""

import io
import itertools
import json
import os
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from arl.cli import app
from arl.config.recipe_file import load_recipe
from arl.metrics.console import ConsoleDisplay
from arl.report.assemble import build_report
from arl.report.numbers_json import numbers_of
from arl.report.page import write_page
from arl.report.parts import Prose, ReportSection, Table
from arl.report.terminal import print_report
from arl.run.train import train
from tests.report.synthetic_runs import old_step, write_metrics, write_recipe, write_run, write_sweep
from tests.run.virtual.test_virtual import RECIPE


def report(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["report", *arguments])


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train four tiny virtual runs: two bounds, two seeds."""
    directory = tmp_path_factory.mktemp("study")
    (directory / "base").mkdir()
    (directory / "base" / "small.yaml").write_text(RECIPE)
    display = ConsoleDisplay(Console(file=io.StringIO()))
    for bound, seed in itertools.product((0, 2), (0, 1)):
        settings = [f"rollout.staleness={bound}", f"seed={seed}", "train.steps=4", "eval.every=2"]
        output = f"output.directory={directory / 'sweep' / f'staleness={bound}'}"
        train(load_recipe(directory / "base" / "small.yaml", [*settings, output, f"name=seed-{seed}"]), display)
    return directory / "sweep"


def test_a_report_of_real_runs_says_what_they_recorded(study: Path) -> None:
    result = report(str(study), "--json")
    assert result.exit_code == 0
    numbers = json.loads(result.stdout)
    assert [(arm["name"], arm["seeds"]) for arm in numbers["arms"]] == [
        ("staleness=0", [0, 1]),
        ("staleness=2", [0, 1]),
    ]
    for arm in numbers["arms"]:
        summaries = [json.loads((study / arm["name"] / f"seed-{n}" / "summary.json").read_text()) for n in (0, 1)]
        last = {value["quantity"]: value["estimate"]["mean"] for value in arm["values"] if value["at"] == "last"}
        assert last["accuracy on held_out"] == pytest.approx(sum(s["accuracy_after"] for s in summaries) / 2)
        assert sum(arm["trainer_time"].values()) == pytest.approx(1)
    assert numbers["arms"][0]["means"]["token_age/mean"]["mean"] == 0
    assert numbers["arms"][1]["means"]["token_age/mean"]["mean"] > 0
    scores = [found for found in numbers["differences"] if found["quantity"] == "accuracy on held_out"]
    assert [found["at"] for found in scores] == ["step 4"]


def test_the_terminal_shows_every_question_with_its_answer(study: Path) -> None:
    result = report(str(study))
    assert result.exit_code == 0
    titles = [section.title for section in build_report([study]).sections]
    assert [title for title in titles if title in result.stdout] == titles
    assert "staleness=0" in result.stdout


def test_the_same_files_give_the_same_bytes_without_a_path_of_this_machine(study: Path) -> None:
    one = msgspec.json.encode(build_report([study]).sections)
    two = msgspec.json.encode(build_report([study]).sections)
    assert one == two
    assert str(study.parent).encode() not in one


def test_a_report_of_a_moved_sweep_is_the_same(tmp_path: Path) -> None:
    write_sweep(tmp_path / "here" / "study", [0, 2], ["ppo"], seeds=2)
    before = msgspec.json.encode(build_report([tmp_path / "here" / "study"]).sections)
    (tmp_path / "there").mkdir()
    (tmp_path / "here" / "study").rename(tmp_path / "there" / "study")
    assert msgspec.json.encode(build_report([tmp_path / "there" / "study"]).sections) == before


def test_a_run_that_grows_while_it_is_reported_is_reported_as_far_as_it_was(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write_recipe(run, [], seed=0)
    write_metrics(run, [old_step(1, 0)])
    with (run / "metrics.jsonl").open("a") as file:
        for step in range(2, 6):
            file.write(json.dumps(old_step(step, 0)) + "\n")
            file.flush()
            assert build_report([run]).runs[0].last_step == step


def test_budgets_are_columns_and_bad_ones_are_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    shown = report(str(tmp_path), "--at-steps", "5,10", "--at-tokens", "1e3").stdout
    assert "step 5" in shown
    assert "1,000 tokens" in shown
    for wrong in ("five", "-1", "nan", "1_0", "١", "1e999"):
        refused = report(str(tmp_path), "--at-steps", wrong)
        assert refused.exit_code == 2
        assert f"--at-steps {wrong}: '{wrong}' is no number" in refused.output


def test_bad_input_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, rule in {"nowhere": "is no directory", "file": "is no directory", "n" * 300: "cannot be looked"}.items():
        refused = report(str(tmp_path / name))
        assert refused.exit_code == 2
        assert f"{tmp_path / name}: {rule}" in refused.output.replace("\n", "")


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
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.html", "two.html"]


def test_a_page_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    refused = report(str(tmp_path / "run"), "--out", str(tmp_path / "nowhere" / "page.html"))
    assert refused.exit_code == 2
    assert "cannot be written (No such file or directory)" in refused.output.replace("\n", "")


def test_a_directory_is_refused_as_the_page_before_runs_are_read(tmp_path: Path) -> None:
    refused = report(str(tmp_path / "nowhere"), "--out", str(tmp_path))
    assert refused.exit_code == 2
    assert f"--out {tmp_path}: is a directory; name a file in it" in refused.output.replace("\n", "")


def test_a_page_takes_the_place_of_no_fifo_and_of_no_link(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    os.mkfifo(tmp_path / "fifo")
    refused = report(str(tmp_path / "run"), "--out", str(tmp_path / "fifo"))
    assert refused.exit_code == 2
    assert "is no regular file" in refused.output
    assert (tmp_path / "fifo").is_fifo()
    (tmp_path / "link.html").symlink_to("page.html")
    write_page(build_report([tmp_path / "run"]), tmp_path / "link.html")
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "page.html").read_text().startswith("<!")


def test_a_torn_trajectory_file_is_named_once_on_the_page(tmp_path: Path) -> None:
    torn = write_run(tmp_path / "run") / "trajectories" / "000000.parquet"
    torn.parent.mkdir()
    torn.write_bytes(b"PAR1")
    write_page(build_report([tmp_path / "run"]), tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().count("run/trajectories/000000.parquet: cannot be read") == 1


@pytest.mark.parametrize("name", ["exp[lr3]", "exp[/x]", ":bug:"])
def test_a_name_is_printed_as_it_is_and_never_as_markup(tmp_path: Path, name: str) -> None:
    write_run(tmp_path / "run")
    table = Table(id="arms", title=name, caption="", header=[name], rows=[[name]])
    section = ReportSection(id="overview", title=name, items=[table, Prose(id="words", lines=[name])])
    built = msgspec.structs.replace(build_report([tmp_path / "run"]), sections=[section])
    output = io.StringIO()
    print_report(built, Console(file=output))
    assert output.getvalue().count(name) == 5


def test_a_run_whose_path_is_not_utf8_is_reported(tmp_path: Path) -> None:
    write_run(tmp_path / "run").rename(tmp_path / os.fsdecode(b"run-\xff"))
    (arm,) = json.loads(numbers_of(build_report([tmp_path])))["arms"]
    assert arm["runs"] == [f"{tmp_path.name}/run-?"]
