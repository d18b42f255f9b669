"""What a recipe leaves to the machine is replaced once, and the run's recipe.yaml keeps what it became."""

from pathlib import Path

import pytest

from arl.config.recipe import Recipe
from arl.config.recipe_file import dump_recipe
from arl.launch import local
from arl.run.auto import resolve_auto


def recipe(tmp_path: Path, **fields: object) -> Recipe:
    values = {"model": {"path": "m"}, "data": {"path": "d"}, "output": {"directory": str(tmp_path)}}
    return Recipe.model_validate(values | fields)


@pytest.mark.parametrize(("devices", "dtype"), [((), "float32"), (("0", "1"), "bfloat16")])
def test_auto_is_bfloat16_on_gpus_and_float32_on_cpus(
    devices: tuple[str, ...], dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "visible_devices", lambda: devices)
    resolved = resolve_auto(recipe(tmp_path))
    assert (resolved.train.dtype, resolved.engine.dtype) == (dtype, dtype)
    assert "dtype: auto" not in dump_recipe(resolved)


def test_a_world_in_one_process_computes_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "visible_devices", lambda: ("0",))
    resolved = resolve_auto(recipe(tmp_path, world="virtual"))
    assert (resolved.train.dtype, resolved.engine.dtype) == ("float32", "float32")
