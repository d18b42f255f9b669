"""The engine benchmark runs, and the engine's logprobs agree with both forwards within their bounds."""

import subprocess
import sys

import msgspec


def test_the_benchmark_reports_rates_and_agreement() -> None:
    command = [sys.executable, "-m", "arl.cli", "bench", "engine", "--requests", "12", "--slots", "8", "--repeats", "1"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=120)
    report = msgspec.json.decode(done.stdout)
    assert report["ratio"] > 0
    for forward in ("logprobs_beside_stock_forward", "logprobs_beside_packed_forward"):
        assert report[forward]["mean"] <= 1e-6
        assert report[forward]["max"] <= 2e-4
