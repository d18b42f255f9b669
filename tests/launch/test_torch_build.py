"""Versions of torch and NCCL on both sides: found by asking an interpreter, and compared before the start."""

import sys
from pathlib import Path

import pytest

from arl.errors import InputError
from arl.launch.torch_build import TorchBuild, own_torch, probe_torch, refuse_unequal_nccl
from tests.fake_sglang import add_fake_torch, make_fake_sglang

OURS = TorchBuild("2.13.0+cu130", "13.0", (2, 29, 7))


def test_another_interpreter_reports_the_same_torch_as_this_process() -> None:
    assert probe_torch(sys.executable) == own_torch()


def test_an_interpreter_with_another_nccl_is_refused_with_versions_places_and_remedy(tmp_path: Path) -> None:
    python = make_fake_sglang(tmp_path)
    add_fake_torch(tmp_path, TorchBuild("2.11.0+cu128", "12.8", (2, 28, 9)))
    theirs = probe_torch(python)
    assert theirs == TorchBuild("2.11.0+cu128", "12.8", (2, 28, 9))
    with pytest.raises(InputError, match=r"sync\.transport broadcast: both sides need the same NCCL") as caught:
        refuse_unequal_nccl(OURS, sys.executable, theirs, python)
    message = str(caught.value)
    for part in ("NCCL 2.29.7", "NCCL 2.28.9", sys.executable, python):
        assert part in message


def test_equal_versions_are_accepted_and_a_side_without_nccl_is_refused() -> None:
    refuse_unequal_nccl(OURS, "a", TorchBuild("2.12.0+cu126", "12.6", (2, 29, 7)), "b")
    for ours in (OURS, TorchBuild("2.13.0+cpu")):
        with pytest.raises(InputError, match=r"torch 2\.13\.0\+cpu for the CPU .* Install the same torch for CUDA"):
            refuse_unequal_nccl(ours, "a", TorchBuild("2.13.0+cpu"), "b")


def test_an_interpreter_whose_torch_cannot_be_imported_says_why(tmp_path: Path) -> None:
    python = make_fake_sglang(tmp_path)
    (tmp_path / "site" / "torch.py").write_text("raise ImportError('libcudart.so.13 is missing')")
    with pytest.raises(InputError, match=r"its torch cannot be imported \(.*libcudart\.so\.13 is missing"):
        probe_torch(python)
