"""The engine benchmark runs, and the engines' logprobs agree with both forwards within their bounds."""

import os
import subprocess
import sys
from typing import Any

import msgspec
import pytest


def bench(**env: str) -> tuple[dict[str, Any], str]:
    command = [sys.executable, "-m", "arl.cli", "bench", "engine", "--requests", "12", "--repeats", "1"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=800, env={**os.environ, "COLUMNS": "300", **env}
    )
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout), done.stderr


def check(report: dict[str, Any], engines: set[str]) -> None:
    assert report["at_a_time"].keys() == {"1", "8", "32", "128"}
    for measured in report["at_a_time"].values():
        assert measured["requests"] == 12
        assert measured["arl_ratio"].keys() == {*engines, "hf_generate"} - {"arl"}
        for side in (*engines, "hf_generate"):
            assert 0 < measured[side]["latency_p50_s"] <= measured[side]["latency_p99_s"]
            assert measured[side]["useful_tokens_per_s"] > 0
    for forward in ("logprobs_beside_stock_forward", "logprobs_beside_packed_forward"):
        assert report[forward].keys() == engines
        for differences in report[forward].values():
            assert differences["mean"] <= 1e-6
            assert differences["max"] <= 2e-4


@pytest.mark.long  # with an SGLang, the next one measures the same and more
def test_the_benchmark_reports_rates_latencies_and_agreement_and_says_that_sglang_is_absent() -> None:
    report, told = bench(ARL_SGLANG_PYTHON="/nowhere/python")
    assert report["sglang"] == "absent"
    assert "SGLang is absent: engine.python /nowhere/python: cannot be run" in told
    check(report, {"arl"})


@pytest.mark.slow
@pytest.mark.sglang
def test_where_there_is_an_sglang_it_is_measured_as_well(sglang_python: str) -> None:
    report, _ = bench(ARL_SGLANG_PYTHON=sglang_python)
    assert report["sglang"].startswith("0.5")
    check(report, {"arl", "sglang"})
