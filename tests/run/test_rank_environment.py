"""Environments of the two sides: NCCL's settings are equal, and ranks get expandable segments."""

import pytest

from arl.config.recipe import Recipe
from arl.errors import RecipeError
from arl.launch.torch_build import SHARED, nccl_settings
from arl.run.processes import rank_environment

ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"


def recipe(train: dict[str, str] | None = None, engine: dict[str, str] | None = None) -> Recipe:
    given = {
        "model": {"path": "m"},
        "data": {"task": "running_checksum"},
        "train": {"environment": train or {}},
        "engine": {"environment": engine or {}},
    }
    return Recipe.model_validate(given)


@pytest.fixture(autouse=True)
def clean_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*SHARED, ALLOCATOR, "PYTORCH_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)


def test_both_sides_get_the_value_that_the_user_gave_anywhere_or_else_0(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "NCCL_CUMEM_ENABLE"
    assert rank_environment(recipe(), "broadcast")[name] == nccl_settings(recipe())[name] == "0"
    monkeypatch.setenv(name, "0")
    for given in (recipe({name: "1"}, {}), recipe({}, {name: "1"})):
        assert rank_environment(given, "broadcast")[name] == nccl_settings(given)[name] == "1"


def test_different_values_for_the_two_sides_are_refused() -> None:
    given = recipe({"NCCL_NVLS_ENABLE": "1"}, {"NCCL_NVLS_ENABLE": "0"})
    with pytest.raises(RecipeError, match=r"train\.environment NCCL_NVLS_ENABLE=1, engine\.environment NCCL_NVLS_ENA"):
        nccl_settings(given)


def test_ranks_get_expandable_segments_unless_an_engine_maps_their_memory_or_the_user_chose_otherwise() -> None:
    assert rank_environment(recipe(), "broadcast")[ALLOCATOR] == "expandable_segments:True"
    assert ALLOCATOR not in rank_environment(recipe(), "ipc")
    chosen = rank_environment(recipe({"PYTORCH_ALLOC_CONF": "max_split_size_mb:256"}), "file")
    assert "expandable_segments:True" not in chosen.values()
