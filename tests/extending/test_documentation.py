"""The examples of docs/extending.md pass the checks that come before a start."""

import contextlib
import re
import shutil
from pathlib import Path

import pytest

from arl.config.recipe_file import load_recipe
from arl.errors import InputError
from arl.run.preflight import preflight
from tests.forks import ROOT

PAGE = (ROOT / "docs" / "extending.md").read_text()
# A module, named in its first line, and the part of a recipe that comes next.
EXAMPLE = re.compile(r"```python\n# (my_\w+)\.py\n(.*?)```.*?```yaml\n(.*?)```", re.DOTALL)
EXAMPLES = {module: (code, section) for module, code, section in EXAMPLE.findall(PAGE)}
DEFAULTS = {
    "model": "model: {tiny: {hidden_size: 32, layers: 1, heads: 2, intermediate_size: 32}}",
    "data": "data: {task: running_checksum, options: {size: 100}}",
    "rollout": "rollout: {max_new_tokens: 48}",
    "world": "world: virtual",
}


def test_each_seam_has_an_example() -> None:
    seams = ("task", "env", "rewards", "objective", "advantage", "backend", "launcher", "tracker")
    assert list(EXAMPLES) == [f"my_{seam}" for seam in seams]


@pytest.mark.parametrize("module", EXAMPLES)
def test_an_example_is_accepted_with_its_part_of_a_recipe(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, section = EXAMPLES[module]
    (tmp_path / f"{module}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    field = section.partition(":")[0]
    others = [default for name, default in DEFAULTS.items() if name != field]
    if module == "my_backend":  # it starts servers
        others.remove(DEFAULTS["world"])
    (tmp_path / "recipe.yaml").write_text("\n".join(["name: example", *others, section]))
    recipe = load_recipe(tmp_path / "recipe.yaml")
    with refused_without_server() if module == "my_backend" else contextlib.nullcontext():
        preflight(recipe)


def refused_without_server() -> contextlib.AbstractContextManager[object]:
    """The probe is the last check, and finds no server here."""
    assert shutil.which("my-server") is None
    return pytest.raises(InputError, match="no my-server on PATH; pip install my-server")
