"""Backends: one table, what each can do, and what a recipe may therefore ask of it."""

from pathlib import Path

import pytest
from pydantic import ValidationError
from transformers import LlamaConfig

from arl.config.recipe import Recipe
from arl.engine.backend import probe_backend
from arl.errors import InputError
from tests.fake_sglang import make_fake_sglang
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
