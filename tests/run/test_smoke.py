"""`arl doctor --smoke` trains on this machine with every combination, and tells what fails."""

from pathlib import Path

import numpy as np
import pytest

from arl.config.engine_section import EngineConfig
from arl.run import smoke
from arl.run.smoke import LIMITS, Combination, compare, smoke_test
from tests.forks import ROOT, arl
from tests.processes import left_behind


@pytest.mark.slow
def test_both_sides_agree_on_this_machine_for_each_dtype_and_transport(tmp_path: Path) -> None:
    done = arl("doctor", "--smoke", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for dtype in ("float32", "bfloat16"):
        for transport in ("file", "broadcast"):
            assert f"embedded-{dtype}-{transport}: ok" in done.stdout
    assert not left_behind(str(tmp_path))


@pytest.mark.long
@pytest.mark.sglang
def test_sglang_agrees_with_the_trainer(sglang_python: str, tmp_path: Path) -> None:
    recipe = str(ROOT / "recipes" / "quickstart-sglang.yaml")
    done = arl("doctor", recipe, "--smoke", "--python", sglang_python, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": ok") == 4


def test_a_combination_that_fails_says_why(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    tried = Combination(EngineConfig(kind="embedded"), True, "float32", "disaggregated", "ipc")
    monkeypatch.setattr(smoke, "combinations", lambda *_: [tried])
    assert not smoke_test(None, None, print)
    told = capsys.readouterr().out
    assert "embedded-float32-ipc: failed: " in told
    assert "sync.transport ipc: the backend embedded" in told
    assert "runs and their logs are in " in told


@pytest.mark.parametrize("dtype", LIMITS)
def test_rounding_is_not_a_mistake_and_another_temperature_is_one_in_every_dtype(dtype: str) -> None:
    limit = LIMITS[dtype]
    noise = np.random.default_rng(1).normal(0, limit / 3, 3000)
    trainer = np.random.default_rng(0).normal(-4.0, 2.0, 3000)
    assert compare(trainer + noise, trainer, limit)[0]
    assert "look at the temperature" in compare(0.9 * trainer, trainer, limit)[1]
    assert "not finite" in compare(np.where(trainer < -8, np.nan, trainer), trainer, limit)[1]
