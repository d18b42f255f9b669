"""Versions of torch and NCCL on both sides: found by asking an interpreter, and compared before the start."""

import shutil
import subprocess
from pathlib import Path

import pytest

from arl.errors import InputError
from arl.launch.torch_build import TorchBuild, probe_torch, refuse_unequal_nccl
from tests.fake_sglang import add_fake_torch, make_fake_sglang

OURS = TorchBuild("2.13.0+cu130", "13.0", (2, 29, 7))


def test_an_interpreter_with_another_nccl_or_none_is_refused_with_versions_places_and_remedy(tmp_path: Path) -> None:
    python = make_fake_sglang(tmp_path)
    add_fake_torch(tmp_path, TorchBuild("2.11.0+cu128", "12.8", (2, 28, 9)))
    theirs = probe_torch(python)
    with pytest.raises(
        InputError, match=r"sync\.transport broadcast: .* NCCL 2\.29\.7 \(here\).* NCCL 2\.28\.9 \(there\)"
    ):
        refuse_unequal_nccl(OURS, "here", theirs, "there")
    with pytest.raises(InputError, match=r"torch 2\.13\.0\+cpu without NCCL .* Install the same torch for CUDA"):
        refuse_unequal_nccl(TorchBuild("2.13.0+cpu"), "here", TorchBuild("2.13.0+cpu"), "there")
    refuse_unequal_nccl(OURS, "here", TorchBuild("2.12.0+cu126", "12.6", (2, 29, 7)), "there")


@pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc, which makes a library")
def test_the_nccl_that_is_loaded_counts_and_the_remedy_gives_the_older_side_the_newer_one(tmp_path: Path) -> None:
    """As in an image whose nvidia-nccl package was exchanged: torch.cuda.nccl.version() does not change with it."""
    python = make_fake_sglang(tmp_path)
    add_fake_torch(tmp_path, TorchBuild("2.13.0+cu130", "13.0", (2, 29, 7)))
    library = tmp_path / "libnccl.so.2"
    command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input="int ncclGetVersion(int *v) { *v = 23002; return 0; }", text=True, check=True)
    with (tmp_path / "site" / "torch" / "__init__.py").open("a") as file:
        file.write(f"import ctypes\nctypes.CDLL({str(library)!r})\n")
    theirs = probe_torch(python)
    assert theirs.nccl == (2, 30, 2)
    with pytest.raises(InputError, match=r"`here -m pip install --no-deps nvidia-nccl-cu13==2\.30\.2` gives both"):
        refuse_unequal_nccl(OURS, "here", theirs, "there")


def test_an_interpreter_whose_torch_cannot_be_imported_says_why(tmp_path: Path) -> None:
    python = make_fake_sglang(tmp_path)
    (tmp_path / "site" / "torch.py").write_text("raise ImportError('libcudart.so.13 is missing')")
    with pytest.raises(InputError, match=r"its torch cannot be imported \(.*libcudart\.so\.13 is missing"):
        probe_torch(python)
