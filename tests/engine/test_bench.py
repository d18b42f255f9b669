"""The engine benchmark runs."""

import os
import subprocess
import sys

import msgspec
import pytest


@pytest.mark.long
def test_the_benchmark_reports_rates_and_latencies_and_says_that_sglang_is_absent() -> None:
    command = [sys.executable, "-m", "arl.cli", "bench", "engine", "--requests", "12", "--repeats", "1"]
    environment = {**os.environ, "COLUMNS": "300", "ARL_SGLANG_PYTHON": "/nowhere/python"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=800, env=environment)
    assert done.returncode == 0, done.stderr
    report = msgspec.json.decode(done.stdout)
    assert report["sglang"] == "absent"
    assert "SGLang is absent: engine.python /nowhere/python: cannot be run" in done.stderr
    assert report["at_a_time"].keys() == {"1", "8", "32", "128"}
    for measured in report["at_a_time"].values():
        for side in ("arl", "hf_generate"):
            assert 0 < measured[side]["latency_p50_s"] <= measured[side]["latency_p99_s"]
            assert measured[side]["useful_tokens_per_s"] > 0
