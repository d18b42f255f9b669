"""Backends: one table, what each can do, and what a recipe may therefore ask of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError
from transformers import LlamaConfig

from arl.config.recipe import Recipe
from arl.engine.backend import BUILT_IN, find_backend, probe_backend
from arl.engine.sglang.installed import Interpreter
from arl.errors import InputError
from tests.fake_sglang import make_fake_sglang
from tests.train.families import SHAPE, make_family

ROOT = Path(__file__).parents[2]


def recipe(**sections: object) -> Recipe:
    base = {"model": {"path": "somewhere"}, "data": {"task": "running_checksum"}}
    return Recipe.model_validate(base | sections)


@pytest.mark.parametrize("kind", BUILT_IN)
def test_every_built_in_backend_has_every_part(kind: str) -> None:
    assert "file" in find_backend(kind).capabilities.transports


@pytest.mark.parametrize(
    ("sections", "rule"),
    [
        ({"engine": {"kind": "embeded"}}, r"engine\.kind 'embeded': did you mean embedded\?"),
        ({"engine": {"kind": "sglang"}, "world": "virtual"}, "engine.kind sglang: the backend sglang cannot generate"),
        (
            {"engine": {"tensor_parallel": 2}},
            "engine.tensor_parallel 2: the backend embedded runs a rep",
        ),
        ({"engine": {"python": "python3"}}, "engine.python python3: the backend embedded has no use for it"),
        ({"engine": {"args": ["--x"]}}, r"engine.args \['--x'\]: the backend embedded has no use for it"),
        ({"engine": {"kind": "sglang", "args": ["--tp", 2]}}, r"engine.args --tp: arl gives it \(engine.tensor_par"),
        ({"engine": {"kind": "sglang", "args": ["--dtype=x"]}}, r"engine.args --dtype: arl gives it \(engine.dtype\)"),
    ],
)
def test_a_recipe_that_asks_more_than_its_backend_can_do_is_refused(sections: dict[str, object], rule: str) -> None:
    with pytest.raises(ValidationError, match=rule):
        recipe(**sections)


@pytest.mark.parametrize(
    ("version", "sections", "rule"),
    [
        ("0.5.17", {"engine": {"kv_policy": "keep"}}, r"engine.kv_policy keep: SGLang 0\.5\.17 in .* only the last"),
        ("0.5.19", {"sync": {"check": True}}, r"sync.check true: SGLang 0\.5\.19 in .* cannot be made to report"),
    ],
)
def test_what_the_installed_version_cannot_do_is_refused_with_the_version_that_can(
    tmp_path: Path, version: str, sections: dict[str, dict[str, object]], rule: str
) -> None:
    engine = {"kind": "sglang", "python": make_fake_sglang(tmp_path, version), **sections.pop("engine", {})}
    given = {"model": {"tiny": {}}, "engine": engine, **sections}
    with pytest.raises(InputError, match=rule):
        probe_backend(recipe(**given))


def test_a_release_candidate_can_do_what_its_release_can() -> None:
    candidate = Interpreter("python", "0.5.20rc1")
    assert candidate.reports_spans
    assert candidate.reports_checksums
    assert not Interpreter("python", "0.5.17.post1").reports_spans


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


def test_reading_a_recipe_imports_no_engine() -> None:
    """Asking every backend what it can do is cheap."""
    heavy = ("torch", "transformers", "aiohttp")
    modules = "arl.engine.sglang.sglang_backend, arl.engine.embedded.embedded_backend"
    probe = f"import sys, {modules}; print(set({heavy}) & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "set()"


def collect(*options: str) -> subprocess.CompletedProcess[str]:
    """Collect a file of which some tests need SGLang, on a machine without it."""
    argv = [sys.executable, "-m", "pytest", "--collect-only", "tests/run/test_sglang_faults.py", *options]
    env = {**os.environ, "ARL_SGLANG_PYTHON": "/nowhere/python"}
    return subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.slow
def test_tests_of_a_real_sglang_that_nobody_asked_for_are_one_line_of_the_summary() -> None:
    done = collect()
    assert done.returncode == 0, done.stdout
    lines = [line for line in done.stdout.splitlines() if "left out" in line]
    assert lines == ["2 tests of a real SGLang were left out: .ci/sglang builds it, and `-m sglang` runs them"]


@pytest.mark.slow
def test_asking_for_the_tests_of_sglang_where_there_is_none_is_an_error() -> None:
    done = collect("-m", "sglang")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "engine.python /nowhere/python: cannot be run" in done.stderr
