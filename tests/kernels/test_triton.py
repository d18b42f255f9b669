"""Check the Triton kernels without a GPU: interpreted, and compiled ahead of time for sm_90."""

import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.kernels.conftest import INTERPRETED

triton = pytest.importorskip("triton", reason="Triton is not installed here")
pytestmark = pytest.mark.skipif(INTERPRETED, reason="runs the interpreter itself")
ROWS = ("logits", "targets", "stride", "vocab")  # divisible by 16 in every real model


@pytest.mark.slow
@pytest.mark.skipif(
    triton.__version__.startswith("3.6.") and np.lib.NumpyVersion(np.__version__) >= "2.4.0",
    reason="the interpreter of Triton 3.6 wants numpy < 2.4",
)
def test_every_test_here_holds_for_the_interpreted_kernels() -> None:
    """With few examples, because the interpreter takes long."""
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", str(Path(__file__).parent), "-p", "no:cacheprovider"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=800)
    assert done.returncode == 0, done.stdout[-8000:]
    assert re.search(r"[3-9]\d passed|\d{3} passed", done.stdout), done.stdout


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_row_statistics_compile_to_wide_loads_without_spills(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from arl.kernels.triton_rows import STATS_CONFIGS, row_stats_kernel

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    types = {"logits": f"*{dtype}", "targets": "*i64", "results": "*fp32", "inverse_temperature": "fp32"}
    for config in STATS_CONFIGS:
        ptx = compiled(row_stats_kernel.fn, types, (*ROWS, "results"), config, {}, tmp_path)
        assert "ld.global.v4.b32" in ptx  # 16 bytes a load
        loop = ptx[ptx.index("$L__BB") : ptx.rindex("ld.global.v4.b32")]
        assert "bar.sync" not in loop  # lanes exchange nothing until a row has been read


def test_in_deterministic_mode_no_measurement_decides_in_which_blocks_a_row_is_summed() -> None:
    from arl.kernels.triton_rows import STATS_CONFIGS, configs_to_measure, row_stats_kernel

    assert row_stats_kernel.early_config_prune is configs_to_measure
    assert configs_to_measure(STATS_CONFIGS, {}, vocab=17) == STATS_CONFIGS
    torch.use_deterministic_algorithms(True)
    try:
        assert configs_to_measure(STATS_CONFIGS, {}, vocab=17) == STATS_CONFIGS[:1]
    finally:
        torch.use_deterministic_algorithms(False)


# The gradient of float32 logits, which train.head asks for, is in the type of the hidden states.
@pytest.mark.parametrize(
    ("dtype", "out", "has_entropy"),
    [
        ("bf16", "bf16", True),
        ("fp32", "bf16", True),
    ],
)
def test_the_row_gradient_compiles_to_wide_accesses_without_spills(
    dtype: str, out: str, has_entropy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from arl.kernels.triton_rows import GRADIENT_CONFIGS, row_gradient_kernel

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    types = {"logits": f"*{dtype}", "out": f"*{out}", "targets": "*i64", "inverse_temperature": "fp32"}
    types |= dict.fromkeys(("peak", "log_total", "of_logprob", "of_entropy", "entropy"), "*fp32")
    constants = {"HAS_ENTROPY": has_entropy}
    for config in GRADIENT_CONFIGS:
        ptx = compiled(row_gradient_kernel.fn, types, (*ROWS, "out", "out_stride"), config, constants, tmp_path)
        assert "ld.global.v4.b32" in ptx
        assert "st.global.v4.b32" in ptx
        assert "bar.sync" not in ptx
        assert out == "fp32" or f"cvt.rn.{out.replace('fp', 'f')}" in ptx  # rounded, not cut off


def compiled(
    kernel: Any,
    types: dict[str, str],
    divisible: Iterable[str],
    config: Any,
    constants: Mapping[str, int],
    directory: Path,
) -> str:
    """Return PTX for sm_90 that ptxas has taken without spilling a register. Arguments without a type are i32."""
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import get_ptxas
    from triton.compiler import ASTSource

    constants = {**constants, **config.kwargs}
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names}
    places = {name: (kernel.arg_names.index(name),) for name in kernel.arg_names}
    source = ASTSource(
        kernel,
        signature,
        {places[name]: value for name, value in constants.items()},
        {places[name]: [["tt.divisibility", 16]] for name in divisible},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 3.9 warns of a default that changes in 3.10
        ptx: str = triton.compile(
            source, target=GPUTarget("cuda", 90, 32), options={"num_warps": config.num_warps}
        ).asm["ptx"]
    (directory / "kernel.ptx").write_text(ptx)
    command = [get_ptxas(90).path, "-v", "--gpu-name=sm_90a", "kernel.ptx", "-o", "kernel.cubin"]
    report = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True, timeout=800).stderr
    print(kernel.__name__, *re.findall(r"Used \d+ registers|\d+ bytes spill \w+", report), sep=", ")
    assert re.findall(r"(\d+) bytes spill", report) == ["0", "0"], report
    return ptx
