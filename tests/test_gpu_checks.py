"""The checks that only a GPU can settle: they refuse a machine without one, and work as far as a CPU can say."""

from pathlib import Path
from time import perf_counter

import pytest
import torch

from tests import gpu_checks
from tests.fake_sglang import make_fake_sglang
from tests.forks import arl
from tests.gpu_checks import CHECKS, HALF_A_BILLION, RUNS, CheckFailed, main, measure_overlap, measure_publication, run


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
def test_without_a_gpu_one_line_says_so_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_checks, "OUT", tmp_path)
    assert main([]) == 2
    assert main(["kernel"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "torch sees no GPU" in first
    assert f"check kernel: choose from {', '.join(CHECKS)}" in second
    assert not list(tmp_path.iterdir())


def test_a_publication_and_a_broadcast_beside_products_are_measured() -> None:
    overlap = measure_overlap(num_bytes=1_000_000, width=64)
    assert all(seconds > 0 for part in ("alone", "both") for seconds in overlap[part].values())
    published = measure_publication("tiny")
    assert [set(row) for row in published["host"]] == [{"reserve", "gather", "offer", "broadcast"}] * 4
    assert published["host_bytes"] == 2 * published["bytes_of_a_version"]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_a_check_is_planned_for_one_gpu(name: str, tmp_path: Path) -> None:
    recipe, *settings = RUNS[name]
    settings.append(f"engine.python={make_fake_sglang(tmp_path)}" if name == "sglang" else "warmup=false")
    sets = [word for setting in settings if setting != HALF_A_BILLION for word in ("--set", setting)]  # a minute
    done = arl("train", recipe, *sets, "--dry-run", "--gpus", "1xH100")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_command_that_fails_says_what_it_printed_last() -> None:
    with pytest.raises(CheckFailed, match=r"(?s)bench nothing: exit code 2.*No such command"):
        run(["arl.cli", "bench", "nothing"], until=perf_counter() + 60)
