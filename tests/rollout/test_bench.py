"""The controller's benchmark runs, holds open what it says, and reports every part."""

from arl.bench.controller_bench import bench_controller


def test_the_benchmark_reports_throughput_groups_and_memory() -> None:
    report = bench_controller(concurrent=64, episodes=2000, repeats=1)
    throughput = report["throughput"]
    assert throughput["episodes"] == 2000
    assert throughput["episodes_per_s"] > 0
    assert throughput["mean_open_episodes"] >= 32
    assert list(report["groups"]["cpu_us_per_group"]) == [8, 64, 512]
    assert report["memory"]["end_mib"] > 0
