"""Backends: one table, what each can do, and what a recipe may therefore ask of it."""

import sys
from pathlib import Path

import pytest
from pydantic import ValidationError
from transformers import LlamaConfig

from arl.config.recipe import Recipe
from arl.engine.backend import probe_backend
from arl.errors import InputError
from tests.fake_sglang import make_fake_sglang, pretend_machine
from tests.train.families import SHAPE, make_family


def recipe(**sections: object) -> Recipe:
    base = {"model": {"path": "somewhere"}, "data": {"task": "running_checksum"}}
    return Recipe.model_validate(base | sections)


@pytest.mark.parametrize(
    ("engine", "rule"),
    [
        ({"kind": "embeded"}, r"engine\.kind 'embeded': did you mean embedded\?"),
        ({"tensor_parallel": 2}, "engine.tensor_parallel 2: the backend embedded runs a rep"),
        ({"kind": "sglang", "args": ["--tp", 2]}, r"engine.args --tp: arl gives it \(engine.tensor_par"),
    ],
)
def test_a_recipe_that_asks_more_than_its_backend_can_do_is_refused(engine: object, rule: str) -> None:
    with pytest.raises(ValidationError, match=rule):
        recipe(engine=engine)


def test_an_old_sglang_is_refused_with_the_version_that_is_needed(tmp_path: Path) -> None:
    engine = {"kind": "sglang", "python": make_fake_sglang(tmp_path, "0.5.19")}
    with pytest.raises(InputError, match=r"arl needs SGLang 0\.5\.20 or newer, and this is 0\.5\.19"):
        probe_backend(recipe(model={"tiny": {}}, engine=engine))


@pytest.mark.parametrize(
    ("python", "glibc", "lacking"),
    [((3, 12, 9), "2.34", ()), ((3, 13, 1), "2.31", ("Python 3.11 or 3.12 (this is 3.13.1)", "glibc 2.34 or newer"))],
)
def test_a_python_or_glibc_for_which_sglang_has_no_wheels_is_named_with_the_command_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: tuple[int, int, int], glibc: str, lacking: tuple[str, ...]
) -> None:
    """Look into an environment with SGLang, which computes on a CPU, and into one where its installation failed."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3.11").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    engine = {"kind": "sglang", "python": make_fake_sglang(tmp_path)}
    pretend_machine(tmp_path, python, glibc)
    found = probe_backend(recipe(model={"tiny": {}}, engine=engine))
    assert len(found.lacking) == len(lacking)
    assert all(map(str.startswith, found.lacking, lacking))
    (command,) = (line for line in found.remedy.splitlines() if "ENV/bin/pip install --no-deps -r" in line)
    assert command.strip().startswith("python3.11 -m venv ENV")
    assert Path(command.rpartition(" ")[2]).is_file()
    (tmp_path / "site" / "sglang-0.5.20.dist-info" / "METADATA").unlink()
    with pytest.raises(InputError, match="there is no SGLang in it") as refused:
        probe_backend(recipe(model={"tiny": {}}, engine=engine))
    assert all(f"on GPUs it needs {each}" in str(refused.value) for each in lacking)


def test_a_model_that_sglang_would_load_otherwise_than_it_was_published_is_refused(tmp_path: Path) -> None:
    """It holds Gemma's norms plus one, and knows no biases in an MLP."""
    engine = {"kind": "sglang", "python": make_fake_sglang(tmp_path)}
    gemma = {"path": str(make_family("gemma-tied", tmp_path / "gemma"))}
    probe_backend(recipe(model=gemma, engine=engine))
    with pytest.raises(InputError, match=r"sync\.check true: SGLang adds one to the norms"):
        probe_backend(recipe(model=gemma, engine=engine, sync={"check": True}))
    LlamaConfig(**SHAPE, mlp_bias=True).save_pretrained(tmp_path / "biased")
    with pytest.raises(InputError, match=r"its MLPs have biases \(mlp_bias\), which SGLang's Llama leaves out"):
        probe_backend(recipe(model={"path": str(tmp_path / "biased")}, engine=engine))
