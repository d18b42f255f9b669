"""What a recipe leaves to the machines is settled once, and machines are named for planning."""

from pathlib import Path

import pytest

from arl.config.recipe import Recipe
from arl.config.recipe_file import dump_recipe
from arl.errors import InputError
from arl.launch import local
from arl.run.machines import named_nodes, resolve_auto


@pytest.mark.parametrize(
    ("devices", "world", "dtype"),
    [((), "wall", "float32"), (("0", "1"), "wall", "bfloat16"), (("0",), "virtual", "float32")],
)
def test_auto_is_bfloat16_where_a_run_computes_on_gpus(
    devices: tuple[str, ...], world: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "visible_devices", lambda: devices)
    values = {"model": {"path": "m"}, "data": {"path": "d"}, "output": {"directory": str(tmp_path)}, "world": world}
    resolved = resolve_auto(Recipe.model_validate(values))
    assert (resolved.train.dtype, resolved.engine.dtype) == (dtype, dtype)
    assert "dtype: auto" not in dump_recipe(resolved)


@pytest.mark.parametrize("text", ["H100", "x80GB", "0xH100"])
def test_what_is_no_number_of_gpus_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError, match=f"--gpus {text}: give a number and a kind, as in 8xH100"):
        named_nodes(text, 1)
