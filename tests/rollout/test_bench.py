"""The controller benchmark runs, holds open what it says, and reports every part."""

import subprocess
import sys

import msgspec


def test_the_benchmark_reports_throughput_groups_and_memory() -> None:
    options = ["--concurrent", "256", "--episodes", "8000", "--repeats", "1"]
    command = [sys.executable, "-m", "arl.cli", "bench", "controller", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=120)
    report = msgspec.json.decode(done.stdout)
    throughput = report["throughput"]
    assert throughput["episodes"] == 8000
    assert throughput["episodes_per_s"] > 0
    assert throughput["mean_open_episodes"] >= 128
    assert len(report["groups"]) == 3
    for groups in report["groups"].values():
        assert list(groups["cpu_us_per_group"]) == ["32", "256", "2048"]
        assert groups["ratio_to_fewest"]["32"] == 1.0
    assert report["memory"]["end_mib"] > 0
