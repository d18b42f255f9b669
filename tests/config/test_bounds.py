"""Every field has a range that a run can hold, and the command ends with its documented exit codes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from arl.config.recipe import Recipe, VirtualCosts
from arl.config.recipe_file import load_recipe
from arl.config.section import inner_sections
from arl.errors import MESSAGE_LENGTH, InputError, RecipeError
from arl.launch.launchers import make_launcher
from arl.sweep.request import SweepOptions, read_request

GOOD = "model: {tiny: {}}\ndata: {task: running_checksum, options: {size: 300}}\n"


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(GOOD)
    return path


def numbers(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield every field that takes a number."""
    for name, field in section.model_fields.items():
        for inner in inner_sections(field.annotation):
            yield from numbers(inner, f"{prefix}{name}.")
        if {int, float} & set(_types(field.annotation)):
            yield f"{prefix}{name}"


def _types(annotation: Any) -> Iterator[Any]:
    yield annotation
    for part in (*getattr(annotation, "__args__", ()), *[getattr(annotation, "__origin__", None)]):
        if part is not None and part is not annotation:
            yield from _types(part)


@pytest.mark.parametrize("field", sorted(set(numbers(Recipe))))
@pytest.mark.parametrize("value", [".inf", "-.inf", ".nan", str(2**63 - 1), "1e300", "-1e300"])
def test_no_number_is_infinite_or_beyond_what_a_run_can_hold(recipe_file: Path, field: str, value: str) -> None:
    with pytest.raises(RecipeError):
        load_recipe(recipe_file, [f"{field}={value}"])


@pytest.mark.parametrize(
    ("override", "rule"),
    [
        ('output.directory="a\\nb"', "must not hold line ends"),
        (f"model.path={'x' * 256}", "must have at most 255 bytes between two slashes"),
        (f"data.path={'x/' * 2_000}", "and 2000 in all"),
        ("output.directory=''", "--set output.directory='': output.directory = '': must not be empty"),
        ("name=-x", "must match pattern"),
        ("name=../x", "must match pattern"),
        (f"name={'x' * 201}", "at most 200 characters"),
        ("warmup=yes", "--set warmup=yes: warmup 'yes': must be true, false, or a section with fields"),
        ("train.weight_decay=1e9", r"train.weight_decay 1e\+09: .* must be more than 0; give less than 1e\+06"),
        ("rollout.group_size=1000000", "a step would have 32000000 episodes"),
        (f"{'a.' * 100}b=1", "no field lies 101 deep"),
        ("data.task='a b:c'", "or your own as module:attribute"),
        ("data.task=..x:y", "or your own as module:attribute"),
    ],
)
def test_a_value_that_no_file_run_or_module_can_have_is_refused(recipe_file: Path, override: str, rule: str) -> None:
    with pytest.raises(RecipeError, match=rule):
        load_recipe(recipe_file, [override])


@pytest.mark.parametrize("cost", sorted(VirtualCosts.model_fields))
def test_virtual_costs_that_no_deadline_allows_are_refused_in_virtual_time(recipe_file: Path, cost: str) -> None:
    too_long = [f"virtual.{cost}=500000"]
    with pytest.raises(RecipeError, match=f"--set virtual.{cost}=500000: virtual.{cost} 500000: .* takes 500000"):
        load_recipe(recipe_file, ["world=virtual", *too_long])
    load_recipe(recipe_file, too_long)
    load_recipe(recipe_file, ["world=virtual", *too_long, "deadlines.step=600000", "deadlines.swap=600000"])


def test_a_module_that_ends_the_process_when_it_is_imported_is_refused(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "script_of_a_user.py").write_text("raise SystemExit('usage: script')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RecipeError, match=r"cannot import script_of_a_user \(usage: script\)"):
        load_recipe(recipe_file, ["data.task=script_of_a_user:Task"])


def test_many_mistakes_are_counted_and_fit_a_screen(recipe_file: Path) -> None:
    recipe_file.write_text(GOOD + "".join(f"unknown{number}: 1\n" for number in range(2_000)))
    with pytest.raises(RecipeError, match="and 1990 more mistakes") as caught:
        load_recipe(recipe_file)
    assert len(str(caught.value)) < MESSAGE_LENGTH


@pytest.mark.slow
def test_the_command_ends_with_exit_code_2_and_no_traceback(recipe_file: Path, tmp_path: Path) -> None:
    hostile = tmp_path / "hostile.yaml"
    hostile.write_bytes(b"name: \xff")
    fifo = tmp_path / "fifo.yaml"
    os.mkfifo(fifo)
    for path, *settings in ([hostile], [fifo], [tmp_path], [recipe_file, "--set", f"seed={'9' * 5_000}"]):
        command = [sys.executable, "-m", "arl.cli", "train", str(path), "--dry-run", *settings]
        ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert ended.returncode == 2, ended.stderr
        assert ended.stderr.startswith("arl: ")
        assert "Traceback" not in ended.stderr
        assert len(ended.stderr) < 4_000


@pytest.mark.parametrize("launcher", ["builtins:dict", "builtins:pow", "builtins:print", "json:loads", "os:path"])
def test_an_object_that_makes_no_launcher_is_refused(recipe_file: Path, launcher: str) -> None:
    recipe = load_recipe(recipe_file, [f"launcher={launcher}"])
    with pytest.raises(RecipeError, match=f"launcher '{launcher}': "):
        make_launcher(recipe, recipe_file.parent)


@pytest.mark.parametrize("field", sorted(set(numbers(Recipe))))
def test_true_is_no_number_in_any_field(recipe_file: Path, field: str) -> None:
    with pytest.raises(RecipeError, match=rf"{field}( =)? True: "):
        load_recipe(recipe_file, [f"{field}=true"])


def test_true_is_no_number_in_a_list_or_in_a_sweeps_budget(recipe_file: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"train.betas = \[True, 0.9\]: must be a number, and not true or false"):
        load_recipe(recipe_file, ["train.betas=[true, 0.9]"])
    (tmp_path / "study.yaml").write_text("recipe: recipe.yaml\nmatch: {steps: true}\n")
    with pytest.raises(InputError, match=r"match.steps = True: must be a number, and not true or false"):
        read_request(tmp_path / "study.yaml", SweepOptions())
