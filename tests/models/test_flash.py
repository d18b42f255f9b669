"""Flash attention 3 is used where it is installed and the GPU runs it, and a rank says which one it uses."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.nn.attention import current_flash_attention_impl, restore_flash_attention_impl

from arl.errors import TrainerError
from arl.models.flash import FLASH_3, choose_flash

GPU = torch.device("cuda", 0)
# What torch asks of the package: operators of these names. No kernel of it runs here.
OPERATORS = """
import torch
library = torch.library.Library("flash_attn_3", "FRAGMENT")
for name in ("fwd", "bwd"):
    if not hasattr(torch.ops.flash_attn_3, name):
        library.define(f"{name}(Tensor q) -> Tensor")
"""


@pytest.fixture(autouse=True)
def _torchs_own_afterwards() -> Iterator[None]:
    yield
    restore_flash_attention_impl(_raise_warn=False)
    sys.modules.pop(FLASH_3, None)


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))


def install(directory: Path, content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (directory / f"{FLASH_3}.py").write_text(content)
    monkeypatch.syspath_prepend(str(directory))


@pytest.mark.usefixtures("hopper")
def test_torch_takes_the_kernels_of_version_3_where_they_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, OPERATORS, monkeypatch)
    assert choose_flash(GPU, torch.bfloat16) == "flash attention 3 of flash_attn_interface"
    assert current_flash_attention_impl() == "FA3"


@pytest.mark.usefixtures("hopper")
def test_without_the_package_it_is_version_2() -> None:
    assert "flash_attn_interface is not installed" in choose_flash(GPU, torch.bfloat16)
    assert current_flash_attention_impl() is None


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("content", ["import missing_library", "x = 1"])
def test_a_package_that_does_not_work_ends_the_run(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if content == "x = 1" and hasattr(torch.ops.flash_attn_3, "fwd"):
        pytest.skip("operators stay defined in a process")
    install(tmp_path, content, monkeypatch)
    with pytest.raises(TrainerError, match="cannot be used"):
        choose_flash(GPU, torch.bfloat16)
