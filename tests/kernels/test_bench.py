"""Run `arl bench kernels` at a small size."""

import shutil

import pytest
import torch

from arl.bench.kernels_bench import bench_kernels
from tests.kernels.conftest import INTERPRETED


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED or torch.cuda.is_available(), reason="sized for a CPU and PyTorch")
def test_every_contestant_is_measured_or_said_to_be_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)  # compiling takes half a minute
    measured = bench_kernels(rows=64, vocab=503, widths=[4], repeats=1)
    losses = measured["from_hidden"]["4"]["policy_loss"]
    absent = {name for name, row in losses.items() if isinstance(row, str)}
    assert absent == {"PyTorch, compiled chunks", "Liger-Kernel", "CCE, exact"}
    ours = losses["arl linear_policy_loss"]
    eager = losses["PyTorch, eager"]
    for row in (ours, eager, *measured["from_logits"]["forward"].values()):
        assert row["seconds"] > 0 and len(row["repeats"]) == 1
